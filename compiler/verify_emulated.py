"""`tilec verify` for a target that no device here is: the machine code itself runs, in the target's emulator.

Beside the oracle's verdict on the outputs, every finding of the emulator is a failure: a missing wait or barrier may well give
the right numbers here.  Each artifact that a generated module would hold is run, the shapes and input styles in turn, with
the waves in a random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import get_args

import torch

from tilec.backends.base import Artifact, Emulated, Emulation, Variant, emulated, usual
from tilec.backends.runtime.cache import Store
from tilec.backends.runtime.checks import bind as bind_call
from tilec.backends.runtime.kernel import clear
from tilec.backends.runtime.settings import settings
from tilec.backends.runtime.signature import Signature
from tilec.dsl.faults import Fault, Faults, TargetFault
from tilec.frontend import Spec, bind
from tilec.ir.attention import Attention
from tilec.jit import Compiler
from tilec.oracle.inputs import Style
from tilec.oracle.tensors import to_torch
from tilec.oracle.units import units_of
from tilec.shapes import small_shapes
from tilec.signature_of import signature_of
from tilec.targets import target
from tilec.targets.gfx942.cycles import predict
from tilec.targets.gfx942.emulator import Run, Unsupported
from tilec.targets.gfx942.listing import NoDisassembly
from tilec.verify_spec import OFFSET, Case, Outcome, Progress, said

MOST_BLOCKS = 12  # of a launch
EVERY = 2  # of the small shapes, those tried


def verify_emulated(
    spec: Spec,
    attn: Attention,
    target_name: str,
    *,
    backend: str | None,
    constants: Mapping[str, int],
    shape: Mapping[str, int] | None,
    seed: int,
    cycles: bool,
    progress: Progress,
) -> Iterator[Outcome]:
    """Outcomes over shapes with an input style each, of the artifact for usual tensors; last of the one for any tensors.

    Of many blocks some are run, and their rows compared.  `cycles`: what ran is timed by the model of `targets.gfx942.cycles`.
    Raises what compiling raises, TargetFault E0911 without a disassembler, E0906 for code that the emulator does not know."""
    chosen = settings()
    compiler = Compiler(spec, attn, backend or chosen.backend, Store(chosen.cache, chosen.lock_wait))
    signature, units = signature_of(attn, spec.source), units_of(target(target_name))
    best = usual(compiler.features(target_name))
    shapes = [*small_shapes(bind(attn, constants), shape)][:: 1 if shape else EVERY]
    loaded: dict[tuple[str, Variant], Emulated] = {}
    cases = [(sizes, best) for sizes in shapes] + [(sizes, frozenset[str]()) for sizes in shapes[-1:]]
    for (sizes, features), style in zip(cases, cycle(get_args(Style)), strict=False):
        known = {n: v for n, v in {**sizes, **constants}.items() if n in signature.constants}
        case = Case(bind(attn, known), sizes, style, seed, units)
        what = said(attn, target_name, sizes, style)
        progress(f"{what}: compiling", 0, 1)
        call = EmulatedCall(case, signature, target_name)
        wanted = features if features == best else frozenset[str]()
        artifact = _artifact(compiler, target_name, Variant(tuple(known.items()), wanted & call.features))
        key = None if artifact is None else (artifact.backend, artifact.variant)
        if artifact is None or key is None or (features != best and key in loaded):
            continue
        with lacks(target_name):
            if key not in loaded:
                loaded[key] = emulated(artifact, signature)
            outcome = call.run(loaded[key], artifact, partial(progress, what), cycles=cycles)
        yield outcome


@contextmanager
def lacks(target_name: str) -> Iterator[None]:
    """What the emulator lacks, as faults: a disassembler (E0911), an instruction (E0906)."""
    try:
        yield
    except NoDisassembly as lack:
        raise TargetFault("E0911", f"the emulator of {target_name} needs a disassembler", note=str(lack)) from lack
    except Unsupported as lack:
        raise TargetFault("E0906", f"the emulator of {target_name} cannot run this code", note=str(lack)) from lack


def _artifact(compiler: Compiler, target_name: str, variant: Variant) -> Artifact | None:
    """None where no backend compiles a variant for any tensors."""
    try:
        return compiler.artifact(target_name, variant)
    except (Fault, Faults):
        if variant.features:
            raise
        return None


class EmulatedCall:
    """Tensors of a case, bound as a call of the runtime would bind them."""

    def __init__(self, case: Case, signature: Signature, target_name: str) -> None:
        self.case, self.inputs = case, case.inputs()
        self.outputs = case.poisoned(self.inputs, [o.name for o in signature.outputs], "cpu")
        tensors = to_torch(self.inputs, "cpu")
        self.arguments = [tensors[n] for n in signature.names]
        self.results = list(self.outputs.values())
        self.bound = bind_call(signature, self.arguments, target_name, self.results)
        self.features = self.bound.features
        if signature.dropout:
            self.arguments.append(torch.tensor([case.seed, OFFSET], dtype=torch.int64))
        self.padded = signature.sequences[0].kind != "dense"

    def run(
        self, kernel: Emulated, artifact: Artifact, progress: Callable[[int, int], None], *, cycles: bool
    ) -> Outcome:
        case, done = self.case, Emulation((), 0, 0)
        if self.bound.empty == "no":
            order = {"most_blocks": MOST_BLOCKS, "order_seed": case.seed}
            done = kernel(self.bound, self.arguments, self.results, **order, progress=progress, trace=cycles)
        partial = done.ran < done.blocks
        if not partial and (self.bound.empty == "keys" or (self.padded and self.bound.empty == "no")):
            self._clear()
        count = sum(r.executed for r in done.runs)
        lds = sum(b.cycles for r in done.runs for b in r.bank_cycles)
        least = sum(b.ideal for r in done.runs for b in r.bank_cycles)
        blocks = f"{done.ran} of {done.blocks} blocks, {count:,} instructions"
        banks = f", LDS takes {lds / least:.2f} of its clocks without conflicts" if least else ""
        note = f"{artifact.backend} ({artifact.variant}), {blocks}{banks}"
        timing = predict(done.runs[0]) if cycles and done.runs else None
        note += f"; {timing}" if timing else ""
        findings = tuple(str(f) for r in done.runs for f in r.findings)
        reports = case.compared(self.inputs, self.outputs, partial=partial)
        figures = None if timing is None else timing.to_data()
        return Outcome(case.attn.name, artifact.target, case.sizes, case.style, reports, note, findings, figures)

    def traced(self, kernel: Emulated, blocks: int) -> Run:
        """What the first block does, instruction by instruction, and the last one if they are to be two."""
        done = kernel(
            self.bound,
            self.arguments,
            self.results,
            most_blocks=blocks,
            order_seed=None,
            progress=lambda done, total: None,
            trace=True,
        )
        return done.runs[0]

    def _clear(self) -> None:
        """Rows of no sequence, which no kernel writes, hold what the runtime puts there beforehand."""
        cleared = [torch.empty_like(t) for t in self.results]
        clear(cleared)
        for t, c in zip(self.results, cleared, strict=True):
            t.copy_(torch.where(t.float().isnan(), c, t))
