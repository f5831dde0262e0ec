"""A kernel as PyTorch knows it: a custom op with a fake implementation and a derivative, and an autograd function.

Each kernel becomes `tilec::<name>_<identity>(Tensor Q, …) -> (Tensor, …)`, and `…_backward` when the spec has a `grad` line.
The identity is a hash of the spec and of how it was loaded, so equal kernels share an op and a saved graph finds it again.
Shapes of outputs are formulas over shapes of inputs: nothing specialises on a length under `torch.compile(dynamic=True)`.

`Attend` does the same for eager calls and under `torch.func`, which custom ops do not support, without the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from tilec.backends.runtime.checks import extents_of, fault, output_shapes
from tilec.backends.runtime.device import target_of
from tilec.dsl.faults import CallFault

if TYPE_CHECKING:
    from tilec.backends.runtime.kernel import Kernel
    from tilec.backends.runtime.signature import Signature

Op = Callable[..., Any]
_KERNELS: dict[str, Kernel] = {}  # what each op runs: the kernel of that identity that was loaded last
_OPS: dict[str, Op] = {}


def is_plain(tensors: Sequence[Any]) -> bool:
    """Whether these are ordinary tensors with no mode active: what the dispatcher has no business with."""
    for t in tensors:
        if type(t) is not Tensor and type(t) is not Parameter:
            return not isinstance(t, Tensor)  # a wrong argument is for the checks to name
    return not (torch._C._len_torch_dispatch_stack() or torch._C._is_torch_function_mode_enabled())


def op_for(kernel: Kernel, name: str) -> Op:
    """The op of that name, registered at first use; from now on it runs `kernel`."""
    _KERNELS[name] = kernel
    if name not in _OPS:
        _OPS[name] = _register(kernel, name)
    return _OPS[name]


def undifferentiable(kernel: Kernel, needed: Sequence[bool]) -> CallFault | None:
    """The error of a backward pass that needs the gradient of an argument which `grad` does not name."""
    signature = kernel.signature
    for argument, wanted in zip(signature.arguments, needed, strict=False):  # dropout's seed and offset come last
        if wanted and argument.name not in signature.gradients:
            named = (
                f"its `grad` line names {', '.join(signature.gradients)}"
                if signature.gradients
                else "it has no `grad` line"
            )
            return fault(
                signature,
                argument,
                "E1020",
                f"`{argument.name}` requires a gradient, and the spec of `{signature.kernel}` does not declare one",
                note=named,
                hint=f"add `grad {argument.name}` to {signature.path}, or pass {argument.name}.detach()",
            )
    return None


def transformed() -> bool:
    """Whether a transform of `torch.func` is active, or a level of forward derivatives."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


class _Plain(torch.autograd.Function):  # type: ignore[misc]
    """A function that forward derivatives and vmap, which it has none of, name as the kernel's own lack."""

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        name = ctx.kernel.signature.kernel
        hint = "torch.func.grad, vjp and jacrev without vmap go through it"
        raise CallFault("E1028", f"`{name}` has no derivative in forward mode", hint=hint)

    @staticmethod
    def vmap(info: Any, in_dims: Any, kernel: Kernel, *_: Any) -> Any:
        name = kernel.signature.kernel
        hint = "its batch is a dimension of its tensors: fold what vmap goes over into it"
        raise CallFault("E1028", f"`{name}` has no vmap", hint=hint)


class Attend(_Plain):
    """An eager call under autograd: `Attend.apply(kernel, *tensors)` gives the outputs as a tuple."""

    @staticmethod
    def forward(kernel: Kernel, *tensors: Tensor) -> tuple[Tensor, ...]:
        return kernel.forward(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        kernel, *tensors = inputs
        ctx.kernel = kernel
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        kernel, needed = ctx.kernel, ctx.needs_input_grad[1:]
        if problem := undifferentiable(kernel, needed):
            raise problem
        if torch.is_grad_enabled() or transformed():
            grads = Derivative.apply(kernel, *d_outputs, *ctx.saved_tensors)
        else:
            grads = Derivative.forward(kernel, *d_outputs, *ctx.saved_tensors)
        return None, *_spread(kernel, needed, grads)


class Derivative(_Plain):
    """The backward pass as a function of its own, so that `create_graph` and `torch.func` see that it ends here."""

    @staticmethod
    def forward(kernel: Kernel, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        d_outputs, inputs, outputs = _split(kernel.signature, tensors)
        return kernel.backward(inputs, outputs, d_outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.kernel = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        name = ctx.kernel.signature.kernel
        raise CallFault("E1025", f"`{name}` has first derivatives only; this backward pass wants the second")


def _split(signature: Signature, tensors: Sequence[Tensor | None]) -> tuple[Any, Any, Any]:
    """Arguments of the derivative: gradients of outputs, inputs, outputs."""
    outs, ins = len(signature.outputs), len(inputs_of(signature))
    return tensors[:outs], tensors[outs : outs + ins], tensors[outs + ins :]


def _spread(kernel: Kernel, needed: Sequence[bool], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients in the order of the arguments, None where none is needed."""
    by_name = dict(zip(kernel.signature.gradients, grads, strict=True))
    return [by_name[n] if wanted else None for n, wanted in zip(inputs_of(kernel.signature), needed, strict=True)]


def inputs_of(signature: Signature) -> tuple[str, ...]:
    """Names of an op's and a launcher's tensors: the arguments, and dropout's seed and offset."""
    return (*signature.names, signature.dropout) if signature.dropout else signature.names


def _results(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _one_or_all(tensors: Sequence[Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _register(kernel: Kernel, name: str) -> Op:
    signature = kernel.signature
    inputs = ", ".join(f"Tensor {n}" for n in inputs_of(signature))

    def run(*tensors: Tensor) -> Any:
        return _one_or_all(_KERNELS[name].forward(tensors))

    def fake(*tensors: Tensor) -> Any:
        target = _KERNELS[name].target or target_of(tensors[0].device)
        shapes = output_shapes(signature, extents_of(signature, tensors[: len(signature.names)]), target)
        return _one_or_all([tensors[0].new_empty(o.shape, dtype=o.dtype) for o in shapes])

    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *outputs)

    def backward(ctx: Any, *d_outputs: Tensor | None) -> Any:
        current = _KERNELS[name]
        if problem := undifferentiable(current, ctx.needs_input_grad):
            raise problem
        assert current.backward_op is not None  # some argument has a gradient
        grads = current.backward_op(*d_outputs, *ctx.saved_tensors)
        spread = _spread(current, ctx.needs_input_grad, grads if isinstance(grads, tuple) else (grads,))
        return spread[0] if len(spread) == 1 else tuple(spread)

    op = torch.library.custom_op(
        f"tilec::{name}", run, mutates_args=(), schema=f"({inputs}) -> {_results(len(signature.outputs))}"
    )
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    overload: Op = op._opoverload
    return overload


def backward_op_for(kernel: Kernel, name: str) -> Op:
    """The op of the derivative: (d_outputs…, inputs…, outputs…) -> gradients in the order of the `grad` line."""
    full = f"{name}_backward"
    if full in _OPS:
        return _OPS[full]
    signature = kernel.signature
    arguments = ", ".join(
        [
            *(f"Tensor? d_{o.name}" for o in signature.outputs),
            *(f"Tensor {n}" for n in (*inputs_of(signature), *(o.name for o in signature.outputs))),
        ]
    )

    def run(*tensors: Tensor | None) -> Any:
        d_outputs, inputs, outputs = _split(signature, tensors)
        return _one_or_all(_KERNELS[name].backward(inputs, outputs, d_outputs))

    def fake(*tensors: Tensor | None) -> Any:
        by_name = dict(zip(inputs_of(signature), _split(signature, tensors)[1], strict=True))
        return _one_or_all([by_name[n].new_empty(by_name[n].shape) for n in signature.gradients])

    op = torch.library.custom_op(
        f"tilec::{full}", run, mutates_args=(), schema=f"({arguments}) -> {_results(len(signature.gradients))}"
    )
    op.register_fake(fake)
    _OPS[full] = op._opoverload
    return _OPS[full]
