"""The vocabulary: every word that means something, with what the checks and messages need to know about it."""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Iterable

KERNEL_WORDS = [
    "index",
    "query",
    "key",
    "value",
    "output",
    "lse",
    "param",
    "bias",
    "sink",
    "scale",
    "score",
    "mask",
    "grad",
    "assume",
    "dropout",
]  # begin a statement of a kernel
SCHEDULE_WORDS = ["tile", "tune", "warps", "stages", "overlap", "rescale", "skip", "order", "split", "map", "cluster"]
SLOTS = ("query", "key", "value", "output", "lse", "param", "bias", "sink")
FACTS = ("nondecreasing", "nonnegative", "unique")
FLOATS = ("bf16", "f16", "f32", "e4m3", "e5m2")
FP8 = ("e4m3", "e5m2")
INTEGERS = ("i32", "i64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
TARGETS = ("sm80", "sm89", "sm90", "sm100", "gfx942", "gfx950", "cpu", "any")

# Functions of expressions: arity, and the kind of the result ("join": the widest of the operands).
FUNCTIONS = {
    "abs": (1, "join"),
    "min": (2, "join"),
    "max": (2, "join"),
    "where": (3, "join"),
    "tanh": (1, "float"),
    "exp": (1, "float"),
    "log": (1, "float"),
    "sqrt": (1, "float"),
}
SCORE = "s"

# Strategy → its argument; `split_q(4)` may leave the name out.
STRATEGIES = {"split_q": ("warp",), "specialized": ("consumer",), "ping_pong": ("consumer", "wave")}
RESCALES = ("eager", "delayed", "conditional")
SKIPS = ("proved", "table", "none")
MAPS = ("linear", "persistent", "longest_first", "xcd")
SWITCH = ("on", "off")
RESIDUE = "residue"

_RESERVED = {
    *KERNEL_WORDS,
    *FACTS,
    *DTYPES,
    *FUNCTIONS,
    *("kernel", "schedule", "on", "packed", "lengths", "scaled", "paged", "deterministic", "atomic"),
    *("and", "or", "not", "true", "false", "inf", "auto"),
    *(RESIDUE, SCORE),
}


def reserved(name: str) -> str | None:
    """Why `name` cannot be declared, or None: words of the language, and of Python, whose calls use these names."""
    if name == SCORE:
        return "`s` is the running score"
    if name in FUNCTIONS:
        return f"`{name}` is a function of the language"
    if name in _RESERVED:
        return f"`{name}` is a word of the language"
    if keyword.iskeyword(name):
        return f"`{name}` is a word of Python, where calls use these names"
    return None


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, or None; a difference of case alone always wins."""
    known = list(dict.fromkeys(choices))
    for c in known:
        if c.lower() == word.lower() and c != word:
            return c
    close = difflib.get_close_matches(word, known, 1, 0.6)
    return close[0] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """The hint for a misspelt word, or None."""
    near = nearest(word, choices)
    return f"did you mean `{near}`?" if near else None


def listed(words: Iterable[str], last: str = "or") -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{w}`" for w in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
