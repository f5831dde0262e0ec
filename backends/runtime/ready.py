"""The short way of a call that repeats an earlier one: one check of its tensors, outputs, launch.

A Ready is made from a call that was checked, and answers for calls like it: the same types, dtypes, devices, shapes, strides,
addresses modulo 16 and need of gradients, under the same modes of PyTorch (inference, autocast, dispatch modes, transforms).
For any other call it gives None, before anything is launched, and the caller takes the long way.

Nearly all of that is one call of `TensorGuards`, the check in C++ that code compiled by torch.compile makes before it runs: its
dispatch keys are a tensor's together with those that modes and transforms add for the thread.  It refuses calls in which two
arguments are one tensor.  A torch without it has no short way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilec.backends.runtime import device as devices

if TYPE_CHECKING:
    from tilec.backends.base import Run
    from tilec.backends.runtime.checks import Output

TensorGuards: Any = getattr(devices.GUARDS, "TensorGuards", None)
LOW = 15  # bits of an address that a call is checked for
address = Tensor.data_ptr
function_mode = torch._C._is_torch_function_mode_enabled


def addresses_of(tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
    """What a Run takes as the last of its arguments."""
    return tuple(map(address, (*tensors, *outputs)))


def allocation(outputs: Sequence[Output], device: torch.device) -> Callable[[], tuple[Tensor, ...]]:
    """What makes new outputs, contiguous, on `device`, which is the current one."""
    empty = devices.empty_on(device)
    first, *rest = [(o.shape, o.strides, o.dtype) for o in outputs]
    if not rest:
        return lambda: (empty(*first),)
    (second,) = rest
    return lambda: (empty(*first), empty(*second))


class Ready:
    """`ready(tensors, out)`: the outputs, or None for a call that is not like the one it was made from.

    `fresh` makes outputs, None for calls that bring their own.  `clear` fills them first, where the kernel does not write all
    of them."""

    __slots__ = ("addresses", "check", "clear", "count", "current", "even", "fresh", "index", "leaves", "low", "run")

    def __init__(
        self,
        tensors: Sequence[Tensor],
        given: Sequence[Tensor],
        fresh: Callable[[], tuple[Tensor, ...]] | None,
        clear: Callable[[Sequence[Tensor]], None] | None,
        run: Run,
    ) -> None:
        self.check = TensorGuards(*tensors, *given, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        self.count = len(given)
        self.leaves = any(
            t.requires_grad for t in (*tensors, *given)
        )  # the check knows, and not whether it is recorded
        self.fresh, self.clear, self.run = fresh, clear, run
        self.current, self.index = devices.current_on(tensors[0].device)
        self.addresses: tuple[int, ...] = ()
        self.low = [a & LOW for a in addresses_of(tensors, given)]
        self.even = not any(self.low)

    @staticmethod
    def of(
        tensors: Sequence[Tensor],
        given: Sequence[Tensor],
        fresh: Callable[[], tuple[Tensor, ...]] | None,
        clear: Callable[[Sequence[Tensor]], None] | None,
        run: Run,
    ) -> Ready | None:
        """None where there is no check, or where it would refuse the very same call."""
        both = (*tensors, *given)
        if TensorGuards is None or len({id(t) for t in both}) < len(both):
            return None
        return Ready(tensors, given, fresh, clear, run)

    def __call__(self, tensors: Sequence[Tensor], out: Any) -> tuple[Tensor, ...] | None:
        if self.fresh is not None:
            if not self.check(*tensors):
                return None
        else:
            out = out if isinstance(out, tuple) else (out,)
            if len(out) != self.count or not self.check(*tensors, *out):
                return None
        if self.leaves and torch.is_grad_enabled():
            return None
        if function_mode() or forward_ad._current_level >= 0 or self.current() != self.index:
            return None
        outputs = out if self.fresh is None else self.fresh()
        addresses = tuple(map(address, (*tensors, *outputs)))
        if addresses != self.addresses:
            if self._unlike(addresses):
                return None
            self.addresses = addresses
        if self.clear is not None:
            self.clear(outputs)
        self.run(tensors, outputs, addresses)
        return outputs

    def _unlike(self, addresses: tuple[int, ...]) -> bool:
        """Whether an address has other low bits than when the call was checked, or an output is where an argument is.

        New outputs are well aligned, and nowhere else."""
        known = addresses[: len(self.low)]
        if self.count and not set(known[: -self.count]).isdisjoint(known[-self.count :]):
            return True
        return bool(reduce(or_, known) & LOW) if self.even else [a & LOW for a in known] != self.low
