"""Attention: the algorithm IR.  The whole meaning of one `kernel` block, as data.

Meaning, for one element of the batch-like indices (b, h, … : every index of the output but `q` and its feature index),
with `q` in 0..M and `k` in 0..N, M and N being the lengths of *this* sequence when the storage is packed or has lengths:

    z[q, k] = scale * sum over pairs i, sum over d_i of  Query_i[q, d_i] * Key_i[k, d_i]     (times descales)
    s       = score_n(… score_1(z))                    score lines, top to bottom, over `s`, indices, extents, params
    live    = mask[q, k]                               false means weight exactly 0, whatever the score
    den[q]  = sum over live k of exp(s) + exp(sink)    the sink only if declared, and only in rows with a live k
    O[q, e] = sum over live k of exp(s) / den[q] * Value[k, e]        (times the value's descale)
    L[q]    = log(den[q])                              natural logarithm
    a row with no live k has O = 0 and L = -inf; a score of -inf counts as not live.

`Tensor.index` is how the tensor is read: one expression per dimension, over indices (`b`, `q`, `h // 4`).  Storage
changes only where an element lies, never the meaning:

    dense    index `q : M`                   row q of this batch entry
    packed   `q : M packed cu_q`             the dimension of `b` is absent in memory; row cu_q[b] + q, M = cu_q[b+1] - cu_q[b]
    lengths  `k : N lengths seqlen_k`        padded rows, N = seqlen_k[b]
    paged    `K[b, k, …] paged t[b, k // P]` memory is [page, slot, …]: page t[b, k // P], slot k % P

All nodes are frozen; expressions are interned (see `ir.expr`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tilec.dsl.spans import Span
from tilec.ir.build import add, mul
from tilec.ir.expr import Expr, Fetch, Int, Kind, Var

Slot = Literal["query", "key", "value", "output", "lse", "param", "bias", "sink", "table"]
Dtype = Literal["bf16", "f16", "f32", "e4m3", "e5m2", "i32", "i64", "bool"]
FLOAT_DTYPES: frozenset[str] = frozenset({"bf16", "f16", "f32", "e4m3", "e5m2"})
BYTES: dict[str, int] = {"bf16": 2, "f16": 2, "f32": 4, "e4m3": 1, "e5m2": 1, "i32": 4, "i64": 8, "bool": 1}


def least_depth(dtype: Dtype) -> int:
    """Elements that the shortest matrix instruction contracts: 16, or 32 of one byte.  PTX ISA, mma.m16n8k16 and m16n8k32."""
    return 32 if BYTES[dtype] == 1 else 16


@dataclass(frozen=True)
class Storage:
    """How one index's sequences lie in memory.  `table`: the i32 tensor of offsets (length B + 1) or lengths (B)."""

    kind: Literal["dense", "packed", "lengths"] = "dense"
    table: str | None = None


@dataclass(frozen=True)
class Index:
    """One declared index; `extent` is an integer constant or a symbol bound at the call."""

    name: str
    extent: Expr
    storage: Storage = Storage()


@dataclass(frozen=True)
class Tensor:
    """One tensor of the call.  `index` has one expression per logical dimension, in memory order."""

    name: str
    slot: Slot
    index: tuple[Expr, ...]
    dtype: Dtype
    scaled: Fetch | None = None  # descale factor, read per (b, head): logical value = stored value * factor
    paged: Fetch | None = None  # block table read; its last index is `k // page`
    facts: frozenset[str] = frozenset()  # nondecreasing, nonnegative, unique
    span: Span | None = field(default=None, compare=False)

    @property
    def page(self) -> int | None:
        """Page size of a paged tensor."""
        if self.paged is None:
            return None
        divisor = self.paged.index[-1].args[1]  # type: ignore[attr-defined]
        assert isinstance(divisor, Int)
        return divisor.value


@dataclass(frozen=True)
class Gradient:
    """`grad` lines: which inputs have gradients and whether adding in arrival order is allowed."""

    names: tuple[str, ...]
    atomic: bool = False


@dataclass(frozen=True)
class Dropout:
    """Each weight is kept where `uniform` >= p (as f32) and divided by 1 - p; see `ir.expr` for the bits."""

    p: float


@dataclass(frozen=True)
class Attention:
    """One kernel.  `q`, `k`: names of the query-row and softmax indices; `d`: contracted index of each pair."""

    name: str
    indices: tuple[Index, ...]
    tensors: tuple[Tensor, ...]  # call order: inputs as declared, then tables; outputs are in it too
    pairs: tuple[tuple[str, str], ...]  # (query, key) names whose contractions add
    value: str
    output: str
    lse: str | None
    q: str
    k: str
    contracted: tuple[str, ...]  # per pair
    feature: str  # the value's and output's feature index
    scale: Expr
    scores: tuple[Expr, ...]  # each over Var("s")
    mask: Expr  # Bool(True) if absent
    sink: Fetch | None
    gradient: Gradient | None
    assumes: tuple[Expr, ...]
    dropout: Dropout | None
    spans: Mapping[Expr, Span] = field(default_factory=dict, compare=False, hash=False)
    source: str = field(default="", compare=False)  # path of the spec, for messages

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name; KeyError if there is none."""
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def index(self, name: str) -> Index:
        """The index of that name; KeyError if there is none."""
        for i in self.indices:
            if i.name == name:
                return i
        raise KeyError(name)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Arguments of a call, in order."""
        return tuple(t for t in self.tensors if t.slot not in ("output", "lse"))

    @property
    def outer(self) -> tuple[Index, ...]:
        """Indices of the output other than its rows and its features (batch, heads): one problem per element."""
        wanted = {self.q, self.feature}
        return tuple(
            i for i in self.indices if i.name not in wanted and any(i.name == n.name for n in self.output_vars())
        )

    def output_vars(self) -> tuple[Var, ...]:
        """The output's index expressions, which are always bare indices."""
        return tuple(e for e in self.tensor(self.output).index if isinstance(e, Var))

    @property
    def extents(self) -> tuple[str, ...]:
        """Symbols bound at the call, in order of declaration."""
        seen: dict[str, None] = {}
        for i in self.indices:
            if isinstance(i.extent, Var):
                seen.setdefault(i.extent.name)
        return tuple(seen)

    @property
    def rng(self) -> str | None:
        """Name of the i64 pair (seed, offset) that a call with dropout brings beside its tensors; None without dropout."""
        taken = {t.name for t in self.tensors} | {i.name for i in self.indices}
        name = "rng"
        while name in taken:
            name += "_"
        return name if self.dropout is not None else None

    @property
    def dropout_words(self) -> tuple[Expr, Expr]:
        """Arguments b and h of `uniform`: the first outer index, and the others flattened row-major (0 if there is none)."""
        first, *others = self.outer or (Index("", Int(0)),)
        word: Expr = Int(0)
        for i in others:
            word = add(mul(word, i.extent), Var(i.name))
        return (Var(first.name) if first.name else Int(0)), word

    @property
    def kinds(self) -> dict[str, Kind]:
        """Kind of each name that may stand in an expression (default int), for `expr.kind_of`."""
        out: dict[str, Kind] = {"s": "float"}
        for t in self.tensors:
            out[t.name] = "float" if t.dtype in FLOAT_DTYPES else "bool" if t.dtype == "bool" else "int"
        return out

    def with_(self, **changes: object) -> Attention:
        """A copy with fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]
