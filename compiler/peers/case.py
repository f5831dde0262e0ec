"""One benchmark case: a bound spec with its tensors on a device, and what fixed kernels would call its features.

Features are *recognised by evaluation*: the mask is compared, element by element, with the causal and window masks of
the same extents.  So a spec gets the credit of a fixed kernel however it is written, and never by mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch

from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention, Tensor
from tilec.ir.expr import TRUE, Expr, Fetch, Float, Int, Op, Var, free_vars, walk
from tilec.peers.torch_expr import value
from tilec.shapes import call_sizes

ROWS = 512  # rows of the mask evaluated at a time


@dataclass(frozen=True)
class Mask:
    """`kind`: full, causal (last row sees the last key), window (causal, and the `window` keys before), or other."""

    kind: str
    window: int | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """`extents` has every symbol; `tensors` are the call's arguments by name, in the spec's own layout."""

    attn: Attention
    extents: Mapping[str, int]
    tensors: Mapping[str, torch.Tensor]

    def size(self, index: str) -> int:
        """Extent of an index."""
        extent = self.attn.index(index).extent
        return int(value(extent, self.extents, {}))

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @cached_property
    def dense(self) -> bool:
        """No packed, padded or paged storage."""
        return all(i.storage.kind == "dense" for i in self.attn.indices) and not any(t.paged for t in self.attn.tensors)

    @cached_property
    def outer(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.attn.outer)

    @cached_property
    def head(self) -> str | None:
        """The index that numbers query heads: the one that keys read divided, else the last outer one."""
        for e in self.attn.tensor(self.attn.pairs[0][1]).index:
            if isinstance(e, Op) and e.name == "//" and isinstance(e.args[0], Var):
                return e.args[0].name
        return self.outer[-1] if self.outer else None

    def view(self, name: str) -> torch.Tensor:
        """A query, key or value as [batch, heads, rows, features], without a copy.

        ValueError if it is not read by one batch index, one head, rows and features."""
        t = self.attn.tensor(name)
        places = [self._axis(t, e) for e in t.index]
        if sorted(p for p in places if p != "batch") not in (["feature", "head", "row"], ["feature", "row"]):
            raise ValueError(f"{name} is not laid out as batch, heads, rows and features")
        x = self.tensors[name]
        for missing in ("batch", "head"):
            if missing not in places:
                x, places = x.unsqueeze(0), [missing, *places]
        return x.permute([places.index(p) for p in ("batch", "head", "row", "feature")])

    def _axis(self, t: Tensor, e: Expr) -> str:
        names = free_vars(e)
        if names & {self.attn.q, self.attn.k}:
            return "row"
        if self.head is not None and self.head in names:
            return "head"
        if names & set(self.outer):
            return "batch"
        return "feature"

    @cached_property
    def masks(self) -> tuple[tuple[str, ...], tuple[dict[str, int], ...]]:
        """The outer indices that the mask depends on, and every combination of their values."""
        on = tuple(n for n in self.outer if n in free_vars(self.attn.mask))
        return on, tuple(dict(zip(on, at, strict=True)) for at in product(*(range(self.size(n)) for n in on)))

    def live_rows(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(q, k, live) blocks: q [rows, 1], k [1, N], live bool [rows, N], over every distinct mask."""
        m, n, attn = self.size(self.attn.q), self.size(self.attn.k), self.attn
        k = torch.arange(n, device=self.device)[None, :]
        for at in self.masks[1]:
            for start in range(0, m, ROWS):
                q = torch.arange(start, min(m, start + ROWS), device=self.device)[:, None]
                got = value(attn.mask, {**self.extents, **at, attn.q: q, attn.k: k}, self.tensors)
                yield q, k, torch.as_tensor(got, device=self.device).expand(q.shape[0], n)

    @cached_property
    def live(self) -> int:
        """Live (query row, key) pairs over the whole problem: the unit in which FLOP are counted."""
        problems = 1
        for name in self.outer:
            problems *= self.size(name)
        if self.attn.mask is TRUE:
            return problems * self.size(self.attn.q) * self.size(self.attn.k)
        counted = sum(int(live.sum()) for _, _, live in self.live_rows())
        return counted * problems // len(self.masks[1])

    @cached_property
    def flops(self) -> int:
        """FLOP of one forward call, counted on live elements: two for each multiply-add of both products."""
        features = sum(self.size(d) for d in self.attn.contracted) + self.size(self.attn.feature)
        return 2 * self.live * features

    @cached_property
    def mask(self) -> Mask:
        """The mask in the words of fixed kernels."""
        if self.attn.mask is TRUE:
            return Mask("full")
        if self.masks[0]:
            return Mask("other")
        m, n = self.size(self.attn.q), self.size(self.attn.k)
        last_row = list(self.live_rows())[-1][2][-1]
        alive = int(last_row.sum())
        kinds = {"full": True, "causal": True, "window": 0 < alive < n}
        for q, k, live in self.live_rows():
            causal = k <= q + (n - m)
            kinds["full"] = kinds["full"] and bool(live.all())
            kinds["causal"] = kinds["causal"] and torch.equal(live, causal)
            kinds["window"] = kinds["window"] and torch.equal(live, causal & (k > q + (n - m) - alive))
        for kind in ("full", "causal", "window"):
            if kinds[kind]:
                return Mask(kind, alive - 1 if kind == "window" else None)
        return Mask("other")

    @cached_property
    def softcap(self) -> float | None:
        """c if the only score line is `s = c * tanh(s / c)`; 0.0 if there is no score line; None otherwise."""
        if not self.attn.scores:
            return 0.0
        if len(self.attn.scores) > 1:
            return None
        s = Var("s")
        match self.attn.scores[0]:
            case Op("*", (Int(a) | Float(a), Op("tanh", (Op("/", (x, Int(b) | Float(b))),)))) if x is s and a == b:
                return float(a)
            case _:
                return None

    @cached_property
    def scale(self) -> float:
        return float(value(self.attn.scale, self.extents, {}))

    @cached_property
    def groups(self) -> int:
        """Query heads per key head."""
        q, k = self.view(self.attn.pairs[0][0]), self.view(self.attn.pairs[0][1])
        return int(q.shape[1]) // int(k.shape[1])

    def reads(self) -> frozenset[str]:
        """Tensors that scores and mask read."""
        return frozenset(x.tensor for e in (*self.attn.scores, self.attn.mask) for x in walk(e) if isinstance(x, Fetch))

    def qkv(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value as [batch, heads, rows, features]."""
        query, key = self.attn.pairs[0]
        return self.view(query), self.view(key), self.view(self.attn.value)

    def in_spec_layout(self, o: torch.Tensor) -> torch.Tensor:
        """An output [batch, heads, rows, features] with the dimensions in the spec's order."""
        t = self.attn.tensor(self.attn.output)
        order = [("batch", "head", "row", "feature").index(self._axis(t, e)) for e in t.index]
        squeezed = [i for i in range(4) if i not in order]
        return o.permute([*squeezed, *order]).flatten(0, len(squeezed)) if squeezed else o.permute(order)


def on_device(spec: Spec, attn: Attention, target: str, shape: Mapping[str, int]) -> Case:
    """A kernel of a file on this machine's device, with tensors of this `shape`, which gives every symbol of the call.

    Raises TargetFault E0905 for a symbol without a value, E0906 for a target that this machine cannot run."""
    from tilec.backends.runtime import device as devices

    constants = unbound_constants(attn)
    missing = [n for n in (*attn.extents, *constants) if n not in shape]
    if missing:
        hint = f"add --shape {','.join(f'{n}=…' for n in missing)}"
        raise TargetFault(
            "E0905", f"`{attn.name}` needs values for {', '.join(missing)}", hint=hint, source=spec.source
        )
    device = devices.first()
    if devices.target_of(device) != target:
        raise TargetFault("E0906", f"this machine cannot run {target}", note=f"it has {devices.describe(device)}")
    sizes = call_sizes(attn, shape)
    return Case(bind(attn, {n: shape[n] for n in constants}), sizes, make_tensors(attn, sizes, device))


def make_tensors(attn: Attention, extents: Mapping[str, int], device: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Normal-distributed inputs in each tensor's own dtype and layout; sorted ids for a `nondecreasing` param, full
    lengths for tables.  Dimensions come from `ir.storage.memory_dims`."""
    from tilec.ir.storage import memory_dims

    generator = torch.Generator(device=device).manual_seed(seed)
    out: dict[str, torch.Tensor] = {}
    for t in attn.inputs:
        shape = tuple(int(value(d, extents, {})) for d in memory_dims(attn, t))
        out[t.name] = _fill(attn, t, shape, extents, device, generator)
    return out


TORCH = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i32": "int32", "i64": "int64", "bool": "bool"}
TORCH |= {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def _fill(
    attn: Attention, t: Tensor, shape: tuple[int, ...], extents: Mapping[str, int], device: Any, g: torch.Generator
) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, TORCH[t.dtype])
    if t.slot == "table":
        return _table(attn, t, shape, extents, device)
    if t.dtype in ("i32", "i64"):
        ids = torch.randint(0, 8, shape, device=device, generator=g)
        return (ids.sort(-1).values if "nondecreasing" in t.facts else ids).to(dtype)
    if t.dtype == "bool":
        return torch.rand(shape, device=device, generator=g) < 0.5
    return torch.randn(shape, device=device, generator=g).to(dtype)


def _table(attn: Attention, t: Tensor, shape: tuple[int, ...], extents: Mapping[str, int], device: Any) -> torch.Tensor:
    """Every sequence at its longest, pages in order, descales of 1."""
    if t.dtype == "f32":
        return torch.ones(shape, device=device)
    for index in attn.indices:
        if index.storage.table == t.name:
            length = int(value(index.extent, extents, {}))
            if index.storage.kind == "packed":
                return torch.arange(shape[0], device=device, dtype=torch.int32) * length
            return torch.full(shape, length, device=device, dtype=torch.int32)
    count = 1
    for n in shape:
        count *= n
    return torch.arange(count, device=device, dtype=torch.int32).view(shape)
