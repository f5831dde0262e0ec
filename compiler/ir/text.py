"""Words of the tile program's text form, shared by `ir.print` and `ir.parse`.

A *word* is a name that needs no quotes: an identifier that is not reserved.  Everything that is free text in the nodes
(a target, an order, a queue, a cluster's kind) prints as a word where it is one and as a JSON string elsewhere.
"""

from __future__ import annotations

import json
import re

from tilec.ir.expr import OPS

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

STATEMENTS = frozenset(
    {
        "let",
        "seek",
        "load",
        "store",
        "mma",
        "copy",
        "move",
        "await",
        "wait",
        "arrive",
        "sync",
        "claim",
        "priority",
        "fence",
        "send",
    }
    | {"if", "else", "for", "while", "cluster", "pass", "proof", "register", "role"}
)
VALUES = frozenset({"true", "false", "inf", "nan", "iota", "sum", "and", "or", "not"})
RESERVED: frozenset[str] = STATEMENTS | VALUES | frozenset(n for n in OPS if NAME.match(n))
"""Words that cannot name a scalar, a buffer, a tensor or a barrier."""


def is_word(text: str) -> bool:
    """Whether `text` may stand without quotes."""
    return NAME.match(text) is not None and text not in RESERVED


def word(text: str) -> str:
    """`text` as a word, or as a JSON string if it is none."""
    return text if is_word(text) else json.dumps(text)
