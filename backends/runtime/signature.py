"""What a call of one kernel looks like, as data that needs no compiler: arguments, outputs and what binds each extent.

`tilec.signature_of` derives a Signature from the spec; a generated module carries it as JSON.  Dimensions, conditions
and solutions are text over the call's symbols (see `extents`).  Symbols beside the spec's own follow `ir.storage`:
`M_rows` rows in memory of a packed or padded index, `K_pages` pages in the pool of K, `T_width` pages a sequence has in
block table T.

The value an extent has *at the call* is a capacity where storage is packed, padded or paged: no sequence is longer.
The lengths themselves stay in device memory, so a call neither synchronises nor fixes them in a captured graph.
Rows past the last packed offset belong to no sequence: their output is 0 and their LSE -inf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilec.dsl.faults import Source
from tilec.dsl.spans import Span

FORMAT = 1


@dataclass(frozen=True)
class Place:
    """Where the spec says it: 1-based line and column, width of the marked text, and the whole line."""

    line: int
    column: int
    width: int
    text: str

    @property
    def span(self) -> Span:
        return Span(self.column - 1, self.column - 1 + self.width, self.line, self.column)

    def source(self, path: str) -> Source:
        """A Source in which only this line has text: all that a message quotes."""
        return Source(path, "\n" * (self.line - 1) + self.text)


@dataclass(frozen=True)
class Argument:
    """One tensor of the call.  `dims`: extents in memory order.  `written`: how the spec reads it, `K[b, k, h // 4, d]`.

    `page` and `block_table` belong to a paged tensor; `facts` (nondecreasing, nonnegative, unique) hold along the last
    dimension of each sequence.  A table is int32 and contiguous, a descale table f32."""

    name: str
    slot: str
    dtype: str
    dims: tuple[str, ...]
    written: str
    place: Place | None = None
    page: int | None = None
    block_table: str | None = None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Binding:
    """symbol = `solve`, over `size` (extent of that axis of that tensor) and symbols bound before."""

    symbol: str
    tensor: str
    axis: int
    solve: str = "size"


@dataclass(frozen=True)
class Condition:
    """`text` must hold over the call's extents.  With `per_sequence` the extents of packed and padded indices are those of
    each sequence, so that only a debug call can see them."""

    text: str
    reason: str
    place: Place | None = None
    per_sequence: bool = False


@dataclass(frozen=True)
class Sequences:
    """The storage of `q` or `k`.  `rows`: positions that memory holds, in all (packed) or of each sequence (lengths)."""

    index: str
    extent: str
    kind: Literal["dense", "packed", "lengths"]
    rows: str
    table: str | None = None


@dataclass(frozen=True)
class Signature:
    """One kernel's call.  `arguments` in positional order; `outputs` are (O,) or (O, L).

    `capacities`: symbols that no tensor's dimension gives, as text over bound ones (M of packed rows is at most `M_rows`).
    `constants`: symbols a tile needs as numbers: one binary for each value.  `keys`: text whose value 0 says that no
    position is live anywhere.  `gradients`: arguments that `grad` names, in its order.
    `dropout`: name of the i64 pair (seed, offset) that a call with dropout has beside its tensors, as the last of them."""

    kernel: str
    path: str
    arguments: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    bindings: tuple[Binding, ...]
    capacities: tuple[tuple[str, str], ...]
    constants: tuple[str, ...]
    conditions: tuple[Condition, ...]
    sequences: tuple[Sequences, ...]
    keys: str
    gradients: tuple[str, ...]
    dropout: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.arguments)

    def argument(self, name: str) -> Argument:
        """The argument or output of that name; KeyError if there is none."""
        for a in (*self.arguments, *self.outputs):
            if a.name == name:
                return a
        raise KeyError(name)

    def __str__(self) -> str:
        ins = ", ".join(f"{a.name}: {a.dtype}[{', '.join(a.dims)}]" for a in self.arguments)
        outs = ", ".join(f"{a.name}: {a.dtype}[{', '.join(a.dims)}]" for a in self.outputs)
        return f"{self.kernel}({ins}) -> {outs}"

    def to_json(self) -> str:
        """JSON text, keys in a fixed order; `from_json` gives an equal Signature."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Signature:
        """The Signature that `to_json` wrote; ValueError for another format number."""
        data: dict[str, Any] = json.loads(text)
        if (found := data.pop("format", None)) != FORMAT:
            raise ValueError(f"signature format {found}, this runtime reads {FORMAT}")
        return Signature(
            kernel=data["kernel"],
            path=data["path"],
            arguments=tuple(map(_argument, data["arguments"])),
            outputs=tuple(map(_argument, data["outputs"])),
            bindings=tuple(Binding(**b) for b in data["bindings"]),
            capacities=tuple((s, e) for s, e in data["capacities"]),
            constants=tuple(data["constants"]),
            conditions=tuple(Condition(**{**c, "place": _place(c["place"])}) for c in data["conditions"]),
            sequences=tuple(Sequences(**s) for s in data["sequences"]),
            keys=data["keys"],
            gradients=tuple(data["gradients"]),
            dropout=data["dropout"],
        )


def _place(data: Mapping[str, Any] | None) -> Place | None:
    return None if data is None else Place(**data)


def _argument(data: Mapping[str, Any]) -> Argument:
    return Argument(
        **{**data, "dims": tuple(data["dims"]), "facts": tuple(data["facts"]), "place": _place(data["place"])}
    )
