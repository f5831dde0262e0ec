"""The callable that users hold: from tensors to a launch, the same for kernels compiled now and ahead of time.

A call whose metadata (shapes, strides, dtypes, devices, base addresses modulo 16) was seen before finds its Plan: checked,
with its outputs' shapes and its launch.  One like the last call does not even look for it (see `ready`).

    eager, no gradient wanted     ready, or: plan, allocate, launch
    gradient wanted, torch.func   the same inside `torch_op.Attend`, an autograd function
    torch.compile, fake tensors,
    modes, subclasses             the custom op `tilec::<name>_<identity>` (see `torch_op`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilec.backends.base import Artifact, Differentiable, Launcher, Run, Variant, launch_half, usual
from tilec.backends.runtime import device as devices
from tilec.backends.runtime.capture import loading, refuse
from tilec.backends.runtime.checks import Bound, apart, bind, extents_of, order
from tilec.backends.runtime.ready import Ready, addresses_of, allocation
from tilec.backends.runtime.seeds import pair, unseeded
from tilec.backends.runtime.settings import settings
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import Attend, Op, backward_op_for, is_plain, op_for, transformed
from tilec.backends.runtime.values import check_values, has_values
from tilec.dsl.faults import CallFault, Fault, Faults, TargetFault

UNRECORDED = "call it under torch.no_grad(), or without `out`"
PLANS = 4096  # call shapes remembered; a server whose packed totals vary forgets all of them at once
Result: TypeAlias = "Tensor | tuple[Tensor, ...]"


class Provider(Protocol):
    """Where artifacts come from: a compiler, or the files beside a generated module."""

    rebuild: str  # what to run for another target, for messages, with `{target}` in it

    def features(self, target: str) -> frozenset[str]:
        """Features of a call that choose between artifacts on this target."""
        ...

    def artifact(self, target: str, variant: Variant) -> Artifact:
        """The artifact; raises a Fault where there is none."""
        ...


@dataclass(slots=True)
class Plan:
    """What one call shape needs.  `checked`: table values are checked at every call.  `fresh` makes outputs; `clear` fills those
    whose rows the kernel does not all write.  `launcher` and `run` None: nothing to launch.  `ready`: its short way."""

    bound: Bound
    checked: bool
    fresh: Callable[[], tuple[Tensor, ...]]
    clear: Callable[[Sequence[Tensor]], None] | None
    launcher: Launcher | None
    run: Run | None
    ready: Ready | None = None


def clear(outputs: Sequence[Tensor]) -> None:
    """What dead rows hold: output 0, LSE -inf."""
    outputs[0].zero_()
    for lse in outputs[1:]:
        lse.fill_(float("-inf"))


def wants_gradient(tensors: Sequence[Any]) -> bool:
    """Whether autograd would record a call with these.  What is no tensor is for the checks to name."""
    if torch.is_grad_enabled():
        for t in tensors:
            if getattr(t, "requires_grad", False):
                return True
    return False


class Kernel:
    """One kernel of a spec.  `kernel(*tensors, out=None, **named)` returns O, or (O, L) when the spec declares an lse.

    Tensors come by position in the order of `signature.arguments` or by the spec's names; `out` has results, which are then
    returned, written into it.  With dropout a call takes
    `rng` as well, an i64 pair (seed, offset) on the device, which every replay of a captured graph reads again; or the numbers
    `seed` and `offset`.  Without a seed the device's generator draws one, so `torch.manual_seed` and checkpointing repeat it.
    Raises CallFault (E10) for a call that does not fit the spec, TargetFault (E09) for a device
    that cannot run it.  `target` pins the target; None takes that of the tensors' device."""

    def __init__(self, signature: Signature, provider: Provider, identity: str, target: str | None = None) -> None:
        self.signature = signature
        self.target = target
        self.provider = provider
        self.__name__ = signature.kernel
        self._names = signature.names
        self._count = len(self._names)
        self._single = len(signature.outputs) == 1
        self._rng = signature.dropout
        self._values = has_values(signature)
        self._clears = signature.sequences[0].kind != "dense"  # rows of no sequence, which no kernel writes
        self._plans: dict[Any, Plan] = {}
        self._latest: list[Ready | None] = [None, None]  # of calls that want outputs, and of calls that bring them
        self._launchers: dict[tuple[torch.device, Variant], Launcher] = {}
        self._loaded: dict[tuple[torch.device, str, Variant], Launcher] = {}  # by what the artifact is
        self._features: dict[str, frozenset[str]] = {}  # of the provider, by target
        self._passed_over: dict[str, None] = {}
        self._mutex = Lock()
        name = f"{signature.kernel}_{identity}"
        self.op: Op = op_for(self, name)
        self.backward_op: Op | None = backward_op_for(self, name) if signature.gradients else None

    def __repr__(self) -> str:
        return f"<tilec kernel {self.signature}>"

    def __deepcopy__(self, memo: object) -> Kernel:
        return self  # a copied model calls the same compiled kernels

    def __call__(
        self, *tensors: Tensor, out: Result | None = None, seed: int | None = None, offset: int = 0, **named: Tensor
    ) -> Result:
        rng = named.pop(self._rng, None) if self._rng else None
        if named or len(tensors) != self._count:
            tensors = self._ordered(tensors, named)
        if self._rng:
            device = getattr(tensors[0], "device", torch.device("cpu"))
            tensors = (*tensors, pair(self.signature, device, rng, seed, offset))
        elif seed is not None or offset:
            unseeded(self.signature, seed, offset)
        if isinstance(out, list):
            out = tuple(out)
        if is_dynamo_compiling():
            return self._through_op(tensors, out)
        ready = self._latest[out is not None]
        if ready is not None:
            done = ready(tensors, out)
            if done is not None:
                return done[0] if self._single else done
        return self._at_length(tensors, out)

    def _at_length(self, tensors: tuple[Tensor, ...], out: Result | None) -> Result:
        """A call that is not like the one before it."""
        if not is_plain(tensors):
            if any(getattr(t, "is_nested", False) for t in tensors):  # which the dispatcher has no rule for
                extents_of(self.signature, tensors[: self._count])
            return self._through_op(tensors, out)
        if transformed() or wants_gradient(tensors):
            return self._recorded(tensors, out)
        if out is not None:
            given = out if isinstance(out, tuple) else (out,)
            if wants_gradient(given):
                raise CallFault(
                    "E1022", "`out` requires a gradient, and what is written into it has none", hint=UNRECORDED
                )
            apart(self.signature, tensors, given)
        plan, outputs = self._forward(tensors, out)
        self._remember(plan, tensors, out)
        return outputs[0] if self._single else outputs

    def _ordered(self, tensors: tuple[Tensor, ...], named: dict[str, Tensor]) -> tuple[Tensor, ...]:
        rest = self._names[len(tensors) :]
        if named.keys() == set(rest) and len(tensors) <= self._count:
            return (*tensors, *[named[n] for n in rest])
        return order(self.signature, tensors, named)

    def artifact(self, target: str | None = None, variant: Variant | None = None) -> Artifact:
        """The compiled kernel: sources, binaries, metadata.  `target` defaults to the pinned one, else the first device's;
        `variant` to that of well-aligned tensors, for a kernel whose symbols all have values."""
        chosen = target or self.target or devices.target_of(devices.first())
        return self.provider.artifact(chosen, variant or Variant((), usual(self.provider.features(chosen))))

    @property
    def passed_over(self) -> tuple[str, ...]:
        """Of the calls so far: backends that their target prefers and that did not take them, each with its reason."""
        return tuple(self._passed_over)

    def forward(self, tensors: Sequence[Tensor], out: Result | None = None) -> tuple[Tensor, ...]:
        """The outputs, with no record for autograd.  With dropout the last of `tensors` is its seed and offset."""
        ready = self._latest[out is not None]
        done = None if ready is None else ready(tensors, out)
        if done is None:
            plan, done = self._forward(tensors, out)
            self._remember(plan, tensors, out)
        return done

    def _forward(self, tensors: Sequence[Tensor], out: Result | None) -> tuple[Plan, tuple[Tensor, ...]]:
        arguments = tensors[: self._count]
        plan = self.plan(arguments, out)
        if plan.checked:
            hint = "unset TILEC_DEBUG for captures"
            refuse(plan.bound.device, self.signature.kernel, "the values of its tables are checked at every call", hint)
            check_values(self.signature, plan.bound, arguments)
        with devices.guard(plan.bound.device):
            outputs = plan.fresh() if out is None else out if isinstance(out, tuple) else (out,)
            if plan.clear is not None:
                plan.clear(outputs)
            if plan.run is not None:
                plan.run(tensors, outputs, addresses_of(tensors, outputs))
        return plan, outputs

    def _remember(self, plan: Plan, tensors: Sequence[Tensor], out: Result | None) -> None:
        """The next call like this one takes the short way, if there is one."""
        if plan.checked or plan.run is None:
            return
        short = out is not None
        if plan.ready is None or plan.ready is self._latest[short]:  # which did not know this call: a mode is another
            given, fresh = ((), plan.fresh) if out is None else (out if isinstance(out, tuple) else (out,), None)
            plan.ready = Ready.of(tensors, given, fresh, plan.clear, plan.run)
        self._latest[short] = plan.ready

    def backward(
        self, tensors: Sequence[Tensor], outputs: Sequence[Tensor], d_outputs: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Gradients of the arguments that `grad` names.  Raises TargetFault E0913 where the target has none yet."""
        plan = self.plan(tensors[: self._count], None)
        wanted = [tensors[self.signature.names.index(n)] for n in self.signature.gradients]
        if plan.launcher is None:
            return tuple(torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in wanted)
        if not hasattr(plan.launcher, "backward"):
            name = self.target or devices.target_of(plan.bound.device)
            raise TargetFault(
                "E0913",
                f"gradients of `{self.signature.kernel}` are not yet on {name}",
                hint="call it under torch.no_grad(), or on CPU tensors",
            )
        launcher = cast(Differentiable, plan.launcher)
        d_inputs = tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in wanted)
        rows = [
            None if d is None else d if d.shape[-1:] == (1,) or d.stride(-1) == 1 else d.contiguous() for d in d_outputs
        ]
        with devices.guard(plan.bound.device):
            launcher.backward(plan.bound, tensors, outputs, rows, d_inputs)
        return d_inputs

    def plan(self, tensors: Sequence[Tensor], out: Result | None) -> Plan:
        """The plan of this call's metadata, made at its first call."""
        try:
            key: Any = tuple([(t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15) for t in tensors])
            if out is not None:
                given = out if isinstance(out, tuple) else (out,)
                key = (key, tuple([(t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15) for t in given]))
        except (AttributeError, RuntimeError):  # no tensors, or none with memory of their own: let the checks say which
            key = None
        return self._plans.get(key) or self._make_plan(key, tensors, out)

    def _make_plan(self, key: Any, tensors: Sequence[Tensor], out: Result | None) -> Plan:
        device = next((t.device for t in tensors if isinstance(t, Tensor)), torch.device("cpu"))
        if self.target is not None:
            devices.require(self.target, device, self.provider.rebuild)
        target = self.target or devices.target_of(device)
        given = out if out is None or isinstance(out, tuple) else (out,)
        bound = bind(self.signature, tensors, target, given)
        launcher, run = self._prepared(bound, target) if bound.empty == "no" else (None, None)
        checked = self._values and (device.type == "cpu" or settings().debug)
        dead = bound.empty == "keys" or (self._clears and bound.empty == "no")
        plan = Plan(bound, checked, allocation(bound.outputs, device), clear if dead else None, launcher, run)
        if len(self._plans) >= PLANS:
            self._plans.clear()
        if key is not None:
            self._plans[key] = plan
        return plan

    def _prepared(self, bound: Bound, target: str) -> tuple[Launcher, Run]:
        with loading(bound.device, self.signature.kernel), devices.guard(bound.device):
            launcher = self._launcher(bound, target)
            return launcher, launcher.prepare(bound)

    def _launcher(self, bound: Bound, target: str) -> Launcher:
        """The launcher of this call's variant; where a toolchain fails on the special one, that of the general one."""
        if target not in self._features:
            self._features[target] = self.provider.features(target)
        variant = Variant(bound.constants, bound.features & self._features[target])
        with self._mutex:
            found = self._launchers.get((bound.device, variant))
            if found is None:
                try:
                    found = self._load(bound.device, target, variant)
                except TargetFault as failure:
                    if failure.code != "E0917" or not variant.features:
                        raise
                    try:
                        found = self._load(bound.device, target, Variant(bound.constants))
                    except (Fault, Faults):
                        raise failure from None
                self._launchers[bound.device, variant] = found
            return found

    def _load(self, device: torch.device, target: str, variant: Variant) -> Launcher:
        artifact = self.provider.artifact(target, variant)
        self._passed_over.update(dict.fromkeys(artifact.passed_over))
        key = device, artifact.backend, artifact.variant
        if key not in self._loaded:
            self._loaded[key] = launch_half(artifact.backend)(artifact, self.signature, device)
        return self._loaded[key]

    def _recorded(self, tensors: Sequence[Tensor], out: Result | None) -> Result:
        if out is not None:
            raise CallFault("E1022", "`out` and gradients do not go together", hint=UNRECORDED)
        results = Attend.apply(self, *tensors)
        return results[0] if self._single else results

    def _through_op(self, tensors: Sequence[Tensor], out: Result | None) -> Result:
        result = self.op(*tensors)
        if out is None:
            return result
        mine, theirs = (x if isinstance(x, tuple) else (x,) for x in (out, result))
        for target, value in zip(mine, theirs, strict=True):
            target.copy_(value)
        return out
