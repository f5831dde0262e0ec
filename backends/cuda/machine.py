"""The machine code of a kernel against its program: what the assembler kept, moved, repeated and spilled.

Loops are matched in the order of their addresses to the program's loops with products (`expect.Expected.passes`).  As many
loops as the program has are its loops.  More are repetitions: each is a loop of the program, in its order, and every
loop of the program is among them.  Fewer means that the compiler found one to run a fixed number of times and wrote it out, or
left it out: then spills alone are looked for, and the report says so.  A loop whose products are a multiple of a pass's is
that many passes unrolled.  Copies are matched in the same way.

Exact: products, and exponentials between their least and most; named barriers; copies.  At least: waits for mbarriers, whose
retries are instructions too; products and copies outside of loops that are repeated; exponentials ahead of a wait.  A pass
begins behind its last product, wherever the assembler rotated its loop to, and more exponentials than asked for may come ahead:
a wait is pinned behind some, and nothing keeps the others behind it.  Factors of rows count as well, so a wait that moved
ahead of at most one for each of a thread's two rows is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilec.backends.cuda.expect import Pass, expected, unused
from tilec.backends.cuda.writer import Box
from tilec.dsl.faults import TargetFault
from tilec.ir.nodes import Program
from tilec.targets.inspect.loops import Loop, innermost, loops
from tilec.targets.inspect.sass import Function, Instruction, NoDisassembly, count, disassemble, parse

PRODUCTS = ("HGMMA", "QGMMA")
WARP_PRODUCTS = ("HMMA",)
SCALARS = (
    8  # products of a warp for each access to local memory: addresses and sums of rows of a step, an issue slot each
)
EXPONENTIAL = "MUFU.EX2"
COPY = "UTMALDG"
AWAIT = "WARPGROUP.DEPBAR"
LOCAL = ("LDL", "STL")
RESULTS = ("STG", "UTMASTG")  # a loop that stores results goes over tiles, not over the keys of one
SMALLER = "smaller tiles, or another `warps` line, leave more registers"


@dataclass(frozen=True)
class Step:
    """A loop of the machine code that makes `passes` passes of `loop` of the program at a time; its counts are of all of them.
    `ahead`: exponentials before the wait for products, where `asked` were; `uniform`: moves to uniform registers, which a
    descriptor in ordinary ones costs."""

    loop: str
    passes: int
    instructions: int
    products: int
    exponentials: int
    asked: int | None
    ahead: int | None
    uniform: int


@dataclass(frozen=True)
class Report:
    """What was found; `unread` says why not all was compared."""

    steps: tuple[Step, ...] = ()
    unread: str | None = None

    def to_data(self) -> dict[str, Any]:
        """For the metadata of an artifact."""
        because = {} if self.unread is None else {"because": self.unread}
        return {"checked": not because, **because, "steps": [asdict(s) for s in self.steps]}


def check_cubin(program: Program, cubin: bytes, name: str, boxes: Iterable[Box] = ()) -> Report:
    """Reads the kernel `name` back and checks it; without a disassembler the report says so.  Raises as `check_machine`."""
    try:
        text = disassemble(cubin)
    except NoDisassembly as missing:
        return Report(unread=str(missing))
    return check_machine(program, parse(text)[name], boxes)


def check_machine(program: Program, code: Function, boxes: Iterable[Box] = ()) -> Report:
    """`boxes`: what copies bring, see `expected`.

    Raises TargetFault E0918 for spills in a loop with products and for a wait that moved ahead of exponentials, which other
    shapes may do without; E0919 for code that is not the program's."""
    found = loops(code)
    hot = innermost(found, *PRODUCTS, *WARP_PRODUCTS)
    for loop in hot:
        if (n := count(loop.instructions(), *LOCAL)) > count(loop.instructions(), *WARP_PRODUCTS) // SCALARS:
            raise _not_kept(code, f"{n} instructions of a loop with products store or load spilled registers", SMALLER)
    if dead := unused(program):
        return Report(unread=f"nothing reads the products that make {dead}: the assembler need not make them")
    if all(r.unit == "warp" for r in program.roles):
        return Report(unread="products of a warp wait for nothing: spills alone were looked for")
    want = expected(program, boxes)
    hot = tuple(x for x in hot if not count(x.instructions(), *RESULTS))
    if len(hot) < len(want.passes):
        return Report(unread=_gone("products", len(hot), len(want.passes)))
    which = _matched(code, "products", hot, PRODUCTS, [p.products for p in want.passes], want.products)
    steps = tuple(_step(code, loop, want.passes[n]) for loop, n in zip(hot, which, strict=True))
    fills = innermost(found, COPY)
    if len(fills) < len(want.fills):
        return Report(steps, unread=_gone("copies", len(fills), len(want.fills)))
    _matched(code, "copies", fills, (COPY,), want.fills, want.copies)
    return Report(steps)


def _matched(
    code: Function, what: str, found: Sequence[Loop], names: tuple[str, ...], want: Sequence[int], total: int
) -> list[int]:
    """The number of each loop in the program, by how many instructions of these names it has; all code has `total` of them."""
    sizes = [count(x.instructions(), *names) for x in found]
    which = _in_order(sizes, want)
    if which is None:
        raise _other(code, f"loops have {_list(sizes)} {what} ({names[0]}), the program's have {_list(want)}")
    outside = count(code.instructions, *names) - sum(sizes)
    meant = total - sum(want)
    if outside < meant or (outside > meant and len(sizes) == len(want)):
        raise _other(code, f"{outside} {what} ({names[0]}) are outside of loops, the program has {meant}")
    return which


def _in_order(sizes: Sequence[int], want: Sequence[int]) -> list[int] | None:
    """For each size the number of the wanted one that it is a multiple of: numbers do not fall, and none is left out."""
    ways: dict[int, list[int]] = {-1: []}
    for size in sizes:
        longer: dict[int, list[int]] = {}
        for last, way in ways.items():
            for n in (last, last + 1):
                if 0 <= n < len(want) and size % want[n] == 0:
                    longer.setdefault(n, [*way, n])
        ways = longer
    return ways.get(len(want) - 1)


def _step(code: Function, loop: Loop, want: Pass) -> Step:
    """What a loop has, checked against the passes that it makes."""
    every, once = list(loop.instructions()), loop.step()
    passes = count(every, *PRODUCTS) // want.products

    def exact(what: str, found: int, least: int, most: int) -> None:
        if not passes * least <= found <= passes * most:
            said = str(least) if least == most else f"{least} to {most}"
            raise _other(code, f"{want.loop}: {found} {what} in {_passes(passes)}, the program has {said} in each")

    exponentials = count(every, EXPONENTIAL)
    exact(f"exponentials ({EXPONENTIAL})", exponentials, want.least, want.most)
    exact("waits for a named barrier (BAR.SYNC)", count(every, "BAR.SYNC"), want.syncs, want.syncs)
    exact("arrivals at a named barrier (BAR.ARV)", count(every, "BAR.ARV"), want.arrivals, want.arrivals)
    waits = count(once, "SYNCS.PHASECHK")
    exact("waits for barriers (SYNCS.PHASECHK)", waits, want.waits, max(want.waits, waits))
    ahead = None
    if want.ahead is not None:
        ahead = min(sorted(_ahead(every), reverse=True)[:passes], default=0)
        if ahead < want.ahead:
            reason = f"{want.loop}: products are awaited after {ahead} exponentials, and not after {want.ahead}"
            raise _not_kept(code, reason, "another `tile` or `warps` line gives the assembler other code to order")
    return Step(
        want.loop,
        passes,
        len(once),
        count(every, *PRODUCTS),
        exponentials,
        want.ahead,
        ahead,
        count(every, "R2UR"),
    )


def _ahead(code: list[Instruction]) -> list[int]:
    """For each wait for all products, the exponentials between it and the product before it."""
    last = max(n for n, i in enumerate(code) if i.is_(*PRODUCTS))
    out, since = [], 0
    for i in (*code[last + 1 :], *code[: last + 1]):
        if i.is_(*PRODUCTS):
            since = 0
        since += i.is_(EXPONENTIAL)
        if i.is_(AWAIT) and i.operands[-1] == "0x0":
            out.append(since)
    return out


def _gone(what: str, found: int, want: int) -> str:
    return f"of {want} loops with {what} the code has {found}: the others run a fixed number of times"


def _passes(n: int) -> str:
    return "a pass" if n == 1 else f"{n} passes"


def _list(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"


def _not_kept(code: Function, reason: str, hint: str) -> TargetFault:
    return TargetFault("E0918", f"the assembler does not keep the schedule of `{code.name}`", note=reason, hint=hint)


def _other(code: Function, reason: str) -> TargetFault:
    message = f"the machine code of `{code.name}` is not what its program says"
    return TargetFault("E0919", message, note=reason, hint="this is a mistake of the compiler, not of the spec")
