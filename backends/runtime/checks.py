"""From the tensors of a call to its shape: extents bound and every mistake that metadata shows, as a CallFault.

`bind` runs once per call shape (`kernel.Kernel` remembers the result), so it may take its time and say much; it never
reads an element and never synchronises.  `values` holds the checks that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, Literal

import torch

from tilec.backends.base import FEW_KEYS, MANY_KEYS, SHORT_ROWS
from tilec.backends.runtime.device import float8
from tilec.backends.runtime.extents import evaluate, symbols
from tilec.backends.runtime.signature import Argument, Binding, Signature
from tilec.dsl.faults import CallFault

Tensors = Sequence[torch.Tensor]

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_ROWS = ("query", "key", "value", "output")  # slots whose last dimension a tile reads as a row


@dataclass(frozen=True)
class Output:
    """Shape and dtype to allocate for one output, in the spec's order of dimensions."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Contiguous ones, as torch has them for dimensions without elements too."""
        return tuple(accumulate((max(1, n) for n in self.shape[:0:-1]), mul, initial=1))[::-1][: len(self.shape)]


@dataclass(frozen=True, eq=False)
class Bound:
    """One call shape.  `extents`: every symbol of the signature.  `features`: what `backends.base` lists under Variants.

    `strides` are those of the arguments, in elements; `output_strides` those of outputs that the caller brought, else None.
    `empty`: `outputs` when no output has an element, `keys` when no position is live anywhere; neither is launched."""

    extents: dict[str, int]
    constants: tuple[tuple[str, int], ...]
    features: frozenset[str]
    strides: tuple[tuple[int, ...], ...]
    outputs: tuple[Output, ...]
    output_strides: tuple[tuple[int, ...], ...] | None
    device: torch.device
    empty: Literal["no", "outputs", "keys"] = "no"


def dtype_of(name: str, target: str) -> torch.dtype:
    """The torch dtype of a logical dtype on a target."""
    return DTYPES[name] if name in DTYPES else float8(name, target)


def fault(signature: Signature, argument: Argument | None, code: str, message: str, **more: Any) -> CallFault:
    """A CallFault that points at the argument's line of the spec."""
    place = argument.place if argument else None
    if place is None:
        return CallFault(code, message, **more)
    return CallFault(code, message, place.span, source=place.source(signature.path), **more)


def order(signature: Signature, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments in the signature's order.  Raises E1001 … E1004 for missing, unknown, repeated, superfluous ones."""
    names = signature.names
    if len(given) > len(names):
        raise fault(
            signature,
            None,
            "E1004",
            f"`{signature.kernel}` takes {len(names)} tensors; this call gave {len(given)}",
            hint=f"in order: {', '.join(names)}",
        )
    for name in named:
        if name not in names:
            near = [n for n in names if n.lower() == name.lower()] or get_close_matches(name, names, n=1)
            tensors = f"its tensors are {', '.join(names)}; scale, mask and all else stand in the spec"
            hint = f"did you mean `{near[0]}`?" if near else tensors
            raise fault(signature, None, "E1002", f"`{signature.kernel}` has no argument `{name}`", hint=hint)
        if names.index(name) < len(given):
            argument = signature.argument(name)
            raise fault(signature, argument, "E1003", f"argument `{name}` came by position and by name")
    missing = [n for n in names[len(given) :] if n not in named]
    if missing:
        argument = signature.argument(missing[0])
        rest = f" (and {', '.join(missing[1:])})" if len(missing) > 1 else ""
        raise fault(
            signature,
            argument,
            "E1001",
            f"argument `{missing[0]}`{rest} is missing",
            hint=f"in order: {', '.join(names)}",
        )
    return (*given, *(named[n] for n in names[len(given) :]))


def extents_of(signature: Signature, tensors: Tensors) -> dict[str, int]:
    """Every symbol of the call, from shapes alone (which may be symbolic).

    Raises E1005 for what is no dense tensor, E1006 rank, E1007 an extent that two places disagree on, E1008 a constant extent."""
    shapes: dict[str, Sequence[int]] = {}
    for argument, t in zip(signature.arguments, tensors, strict=True):
        if not isinstance(t, torch.Tensor):
            raise fault(signature, argument, "E1005", f"`{argument.name}` is a {type(t).__name__}, not a torch.Tensor")
        if t.is_nested or t.layout != torch.strided:
            form = "nested" if t.is_nested else str(t.layout).removeprefix("torch.")
            raise fault(
                signature,
                argument,
                "E1005",
                f"`{argument.name}` is a {form} tensor, and kernels read dense ones",
                note=_layout_note(signature, argument),
            )
        if t.ndim != len(argument.dims):
            raise fault(
                signature,
                argument,
                "E1006",
                f"`{argument.name}` has {len(argument.dims)} dimensions, [{', '.join(argument.dims)}]; "
                f"this call gave {t.ndim}, {_shape(t.shape)}",
                note=_layout_note(signature, argument),
            )
        shapes[argument.name] = t.shape
    env: dict[str, int] = {}
    origin: dict[str, str] = {}
    for b in signature.bindings:
        size = shapes[b.tensor][b.axis]
        env[b.symbol] = _solve(signature, b, env, origin, size)
        origin[b.symbol] = b.tensor
    for symbol, text in signature.capacities:
        env[symbol] = evaluate(text, env)
    for argument in signature.arguments:
        for axis, (dim, size) in enumerate(zip(argument.dims, shapes[argument.name], strict=True)):
            if dim in env and origin.get(dim) == argument.name and env[dim] is size:
                continue
            if _extent(dim, env) != size:
                raise _wrong_extent(signature, argument, axis, env, origin, shapes[argument.name])
    return env


def _solve(signature: Signature, b: Binding, env: Mapping[str, int], origin: Mapping[str, str], size: int) -> Any:
    """The value of a symbol: an extent, one less, or the divisor that gives it."""
    if b.solve == "size":
        return size
    argument = signature.argument(b.tensor)
    if "//" not in b.solve:
        value = evaluate(b.solve, {"size": size})
        if isinstance(value, int) and value < 0:
            message = f"dimension {b.axis} of `{b.tensor}` is {argument.dims[b.axis]}; this call gave {size}"
            raise fault(signature, argument, "E1007", message)
        return value
    dim = argument.dims[b.axis]
    value = evaluate(b.solve, {**env, "size": size}) if size else 0
    if value < 1 or evaluate(dim, {**env, b.symbol: value}) != size:
        known = ", ".join(f"{s} = {env[s]} from `{origin[s]}`" for s in sorted(symbols(dim) - {b.symbol}))
        message = f"dimension {b.axis} of `{b.tensor}` is {dim}, with {known}; no {b.symbol} makes it {size}"
        raise fault(signature, argument, "E1007", message)
    return value


def _extent(dim: str, env: Mapping[str, int]) -> Any:
    """The extent that `dim` stands for: an int, or a SymInt while tracing."""
    return int(dim) if dim.isdecimal() else evaluate(dim, env)


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _layout_note(signature: Signature, argument: Argument) -> str | None:
    if argument.page is not None:
        return f"paged storage: dimensions are page of the pool, then slot in the page (0 to {argument.page - 1})"
    packed = [s for s in signature.sequences if s.kind == "packed" and s.rows in argument.dims]
    if packed:
        return (
            f"packed storage: sequences lie end to end, so there is no batch dimension (offsets in `{packed[0].table}`)"
        )
    return None


def _wrong_extent(
    signature: Signature, argument: Argument, axis: int, env: Mapping[str, int], origin: Mapping[str, str], shape: Any
) -> CallFault:
    dim, given = argument.dims[axis], shape[axis]
    free = sorted(symbols(dim))
    note = f"`{argument.name}` is [{', '.join(argument.dims)}]; this call gave {_shape(shape)}"
    if not free:
        message = f"dimension {axis} of `{argument.name}` is {dim}; this call gave {given}"
        return fault(signature, argument, "E1008", message, note=note)
    known = ", ".join(f"{s} = {env[s]} from `{origin[s]}`" if s in origin else f"{s} = {env[s]}" for s in free)
    wanted = dim if dim in env else f"{dim} = {_extent(dim, env)}"
    message = f"dimension {axis} of `{argument.name}` is {wanted}, with {known}; this call gave {given}"
    return fault(signature, argument, "E1007", message, note=note)


def bind(signature: Signature, tensors: Tensors, target: str, out: Tensors | None = None) -> Bound:
    """The shape of this call.  Raises a CallFault for every mismatch that metadata shows (E1005 … E1019)."""
    env = extents_of(signature, tensors)
    device = tensors[0].device
    for argument, t in zip(signature.arguments, tensors, strict=True):
        _check_dtype(signature, argument, t, target)
        _check_device(signature, argument, t, device)
        _check_layout(signature, argument, t)
    for c in signature.conditions:
        if not c.per_sequence and not evaluate(c.text, env):
            values = ", ".join(f"{s} = {env[s]}" for s in sorted(symbols(c.text)))
            place = c.place
            raise CallFault(
                "E1014",
                f"this call has {values}, and `{c.text}` must hold",
                place.span if place else None,
                note=c.reason,
                source=place.source(signature.path) if place else None,
            )
    outputs = output_shapes(signature, env, target)
    if out is not None:
        _check_out(signature, out, outputs, device)
    rows = [t for a, t in zip(signature.arguments, tensors, strict=True) if a.slot in _ROWS]
    return Bound(
        extents=env,
        constants=tuple((s, env[s]) for s in signature.constants),
        features=_features((*rows, *(out or ())[:1]), (*tensors, *(out or ())), outputs, allocate=out is None)
        | _sizes(signature, env),
        strides=tuple(t.stride() for t in tensors),
        outputs=outputs,
        output_strides=tuple(t.stride() for t in out) if out is not None else None,
        device=device,
        empty=_empty(signature, env, outputs),
    )


def output_shapes(signature: Signature, env: Mapping[str, int], target: str) -> tuple[Output, ...]:
    """Shape and dtype of each output of a call with these extents (which may be symbolic)."""
    return tuple(
        Output(tuple(int(d) if d.isdecimal() else evaluate(d, env) for d in o.dims), dtype_of(o.dtype, target))
        for o in signature.outputs
    )


def _check_dtype(signature: Signature, argument: Argument, t: torch.Tensor, target: str) -> None:
    want = dtype_of(argument.dtype, target)
    if t.dtype == want:
        return
    if t.dtype in _FLOAT8 and want in _FLOAT8 and str(t.dtype)[:19] == str(want)[:19]:
        raise fault(
            signature,
            argument,
            "E1010",
            f"{target} stores {argument.dtype} as {str(want)[6:]}; this call passed {str(t.dtype)[6:]} for `{argument.name}`",
            note="the same bits mean another number there, and 0x80 is NaN in the FNUZ form",
            hint=f'convert with tilec.fp8.to_target({argument.name}, "{target}")',
        )
    message = f"`{argument.name}` is {argument.dtype} ({want}); this call gave {t.dtype}"
    raise fault(signature, argument, "E1009", message)


def _check_device(signature: Signature, argument: Argument, t: torch.Tensor, device: torch.device) -> None:
    if t.device != device:
        first = signature.arguments[0].name
        message = (
            f"`{argument.name}` is on {t.device} and `{first}` on {device}; all tensors of a call share one device"
        )
        raise fault(signature, argument, "E1011", message)


def _check_layout(signature: Signature, argument: Argument, t: torch.Tensor) -> None:
    """Rows that tiles read are contiguous; tables are; strides of dimensions of extent 0 or 1 mean nothing."""
    if argument.slot in _ROWS and t.numel() and t.ndim and t.shape[-1] > 1 and t.stride(-1) != 1:
        raise fault(
            signature,
            argument,
            "E1012",
            f"the last dimension of `{argument.name}` must be contiguous; this call gave strides {_shape(t.stride())}",
            hint=f"{argument.name}.contiguous() copies it; any other stride is fine as it is",
        )
    if argument.slot == "table" and not t.is_contiguous():
        raise fault(
            signature,
            argument,
            "E1013",
            f"table `{argument.name}` must be contiguous; this call gave strides {_shape(t.stride())}",
            hint=f"{argument.name}.contiguous() copies it",
        )


def _check_out(signature: Signature, out: Tensors, outputs: tuple[Output, ...], device: torch.device) -> None:
    if len(out) != len(outputs):
        names = ", ".join(o.name for o in signature.outputs)
        raise CallFault("E1019", f"`out` needs {len(outputs)} tensors ({names}); this call gave {len(out)}")
    for argument, t, o in zip(signature.outputs, out, outputs, strict=True):
        if not isinstance(t, torch.Tensor) or (tuple(t.shape), t.dtype, t.device) != (o.shape, o.dtype, device):
            given = f"{t.dtype}{_shape(t.shape)} on {t.device}" if isinstance(t, torch.Tensor) else type(t).__name__
            wanted = f"{o.dtype}{_shape(o.shape)} on {device}"
            raise fault(
                signature, argument, "E1019", f"`out` for `{argument.name}` must be {wanted}; this call gave {given}"
            )
        overlapping = any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride(), strict=True))
        if t.numel() and (overlapping or (argument.slot in _ROWS and t.ndim and t.shape[-1] > 1 and t.stride(-1) != 1)):
            message = f"`out` for `{argument.name}` needs distinct elements and a contiguous last dimension"
            raise fault(signature, argument, "E1019", f"{message}; this call gave strides {_shape(t.stride())}")


def apart(signature: Signature, tensors: Tensors, out: Tensors) -> None:
    """Raises CallFault E1019 for an `out` that begins where an argument does: it would be written before it is read."""
    read = {t.data_ptr(): n for n, t in zip(signature.names, tensors, strict=False) if _held(t)}
    for argument, t in zip(signature.outputs, out, strict=False):
        if _held(t) and t.data_ptr() in read:
            message = f"`out` for `{argument.name}` lies where `{read[t.data_ptr()]}` does, and would be written while it is read"
            raise fault(signature, argument, "E1019", message)


def _held(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_nested and t.numel() > 0


def _features(rows: Tensors, tensors: Tensors, outputs: tuple[Output, ...], allocate: bool) -> frozenset[str]:
    """`rows`: tensors that tiles read or write.  Outputs that are still to be allocated are contiguous and well aligned."""
    found = set()
    o = outputs[0]
    if all(map(_aligned, rows)) and (not allocate or o.shape[-1] * o.dtype.itemsize % 16 == 0):
        found.add("aligned")
    if all(not t.ndim or t.shape[-1] <= 1 or t.stride(-1) == 1 for t in tensors):
        found.add("unit")
    return frozenset(found)


def _sizes(signature: Signature, env: Mapping[str, int]) -> frozenset[str]:
    """What the numbers of rows and keys say."""
    held = [evaluate(s.rows, env) for s in signature.sequences]
    keys = held[1] if all(s.kind == "dense" for s in signature.sequences) else None
    facts = {
        "round": all(n % 16 == 0 for n in held),
        "short": held[0] <= SHORT_ROWS,
        "few_keys": keys is not None and keys <= FEW_KEYS,
        "many_keys": keys is not None and keys > MANY_KEYS,
    }
    return frozenset(name for name, holds in facts.items() if holds)


def _aligned(t: torch.Tensor) -> bool:
    size = t.element_size()
    outer = zip(t.shape[:-1], t.stride()[:-1], strict=True)
    return t.data_ptr() % 16 == 0 and all(n <= 1 or (s > 0 and s * size % 16 == 0) for n, s in outer)


def _empty(
    signature: Signature, env: Mapping[str, int], outputs: tuple[Output, ...]
) -> Literal["no", "outputs", "keys"]:
    if not any(prod(o.shape) for o in outputs):
        return "outputs"
    return "keys" if evaluate(signature.keys, env) == 0 else "no"
