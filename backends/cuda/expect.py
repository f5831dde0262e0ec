"""What machine code a program asks for: products, exponentials, copies and barriers of each pass of its loops.

Counts are of instructions in a thread's code.  A warpgroup multiplies 64 rows by up to 256 columns over 32 bytes of contracted
values with one instruction (PTX ISA, wgmma.mma_async, shapes); its 128 threads hold two rows each of a tile, and of these a
quarter of the columns.  An exponential may be computed less often than it is written: once for arguments that are alike, and in
front of the loop where nothing in the loop changes its argument.  So there is a least and a most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilec.backends.cuda.shared import WARPS
from tilec.backends.cuda.writer import Box
from tilec.ir.attention import BYTES
from tilec.ir.axes import Axes, axes_of, contracted, scope_of, slot_lanes, union
from tilec.ir.expr import Expr, Int, Op, Read, Reduce, Var, children, walk
from tilec.ir.nodes import (
    Arrive,
    Await,
    Compute,
    Copy,
    For,
    Let,
    Load,
    Mma,
    Program,
    Role,
    Stmt,
    Store,
    Sync,
    Wait,
    While,
)
from tilec.ir.nodes import blocks as blocks_of
from tilec.ir.nodes import walk as statements

DEPTH = 32  # bytes of contracted values of one instruction
ROWS = 2  # of a tile, that a thread holds a part of
QUAD = 4  # threads that share a row
EXPONENTIALS = frozenset({"exp2", "exp"})


@dataclass(frozen=True)
class Pass:
    """One pass of `loop`.  `least` and `most` exponentials, `ahead` of them before the wait for products that stands among
    them (None: no wait does); `waits` for mbarriers; `syncs` and `arrivals` of named barriers."""

    loop: str
    products: int
    least: int
    most: int
    ahead: int | None
    waits: int
    syncs: int
    arrivals: int


@dataclass(frozen=True)
class Expected:
    """`passes`: of each innermost loop with products, in the program's order; `products`: of all code; `fills`: copies in a pass
    of each innermost loop that has some; `copies`: of all code."""

    passes: tuple[Pass, ...]
    products: int
    fills: tuple[int, ...]
    copies: int


def expected(program: Program, boxes: Iterable[Box] = ()) -> Expected:
    """Of a program that `ir.verify` accepts, whose copies bring such boxes (else one each).  Roles of blocks, products without a
    queue and copies in one are not counted."""
    single = {b.tensor: b.columns for b in boxes if b.single}
    passes: list[Pass] = []
    fills: list[int] = []
    products = copies = 0
    for role in program.roles:
        if role.unit not in WARPS:
            continue
        counter = _Counter(program, role, single)
        passes += [counter.one_pass(s) for s in _innermost(role.body, counter.is_product)]
        fills += [counter.copies(s.body) for s in _innermost(role.body, _is_copy)]
        products += counter.products(role.body)
        copies += counter.copies(role.body)
    return Expected(tuple(passes), products, tuple(fills), copies)


def unused(program: Program) -> str | None:
    """The destination of a product that is overwritten before anything reads it, which the assembler need not make."""
    for role in program.roles:
        found = list(statements(role.body))
        for n, s in enumerate(found):
            if isinstance(s, Mma):
                for after in found[n + 1 :]:
                    if isinstance(after, Compute):
                        if any(isinstance(x, Read) and x.buffer == s.dst.buffer for x in walk(after.value)):
                            break
                        if after.dst == s.dst:
                            return s.dst.buffer
                    elif isinstance(after, Mma) and s.dst in (after.dst, after.a):
                        break
    return None


def _is_copy(s: Stmt) -> bool:
    return isinstance(s, Copy) and s.signal is not None


def _innermost(body: tuple[Stmt, ...], having: Callable[[Stmt], bool]) -> Iterator[For | While]:
    """Loops around such statements that have no such loop inside.  One that runs once is no loop."""
    for s in body:
        inner = [x for b in blocks_of(s) for x in _innermost(b, having)]
        yield from inner
        once = isinstance(s, For) and isinstance(s.lo, Int) and isinstance(s.hi, Int) and s.hi.value - s.lo.value <= 1
        if isinstance(s, For | While) and not once and not inner and any(map(having, statements(s.body))):
            yield s


def _reads(e: Expr) -> set[str]:
    """Buffers and scalars."""
    return {x.buffer if isinstance(x, Read) else x.name for x in walk(e) if isinstance(x, Read | Var)}


class _Counter:
    """Counts in one role."""

    def __init__(self, program: Program, role: Role, single: Mapping[str, int]) -> None:
        self.single = single
        self.scope = scope_of(program, role)
        self.group = role.unit == "warpgroup"
        self.dtypes = {b.name: b.dtype for b in (*program.buffers, *role.buffers)}
        self.named = {b.name for b in program.barriers if b.kind == "named"}
        self.row = next((b.axes[0].name for b in role.buffers if b.axes), None)

    def is_product(self, s: Stmt) -> bool:
        return isinstance(s, Mma) and s.queue is not None and self.group

    def products(self, body: tuple[Stmt, ...]) -> int:
        """Instructions of all products."""
        total = 0
        for s in statements(body):
            if isinstance(s, Mma) and self.is_product(s):
                dst, a, b = (slot_lanes(x, self.scope) for x in (s.dst, s.a, s.b))
                depth = prod(dict(b)[x] for x in contracted(dst, a, b))
                total += -(-depth * BYTES[self.dtypes[s.b.buffer]] // DEPTH)
        return total

    def copies(self, body: tuple[Stmt, ...]) -> int:
        """Instructions of all copies: one, or one for each panel of columns where a box is single."""
        total = 0
        for s in statements(body):
            if isinstance(s, Copy) and _is_copy(s):
                _, columns = slot_lanes(s.dst, self.scope)[-1]
                total += -(-columns // self.single.get(s.tensor, columns))
        return total

    def one_pass(self, loop: For | While) -> Pass:
        found = list(statements(loop.body))
        exponentials = list(self.exponentials(loop, found))
        segment = loop.proof.segment if isinstance(loop, For) and loop.proof is not None else None
        name = f"for {loop.var}" if isinstance(loop, For) else f"while {loop.cond}"
        return Pass(
            f"{name}, {segment}" if segment else name,
            self.products(loop.body),
            sum(least for _, least, _ in exponentials),
            sum(most for _, _, most in exponentials),
            self.ahead(exponentials),
            sum(isinstance(s, Wait) for s in found),
            sum(isinstance(s, Sync) for s in found),
            sum(isinstance(s, Arrive) and s.bar.name in self.named for s in found),
        )

    def ahead(self, exponentials: list[tuple[Stmt, int, int]]) -> int | None:
        """Those before the wait that stands in the middle of a statement: its own, and all that made what it starts from."""
        for n, (s, least, _) in enumerate(exponentials):
            if isinstance(s, Compute) and any(isinstance(x, Await) for x in s.during):
                same = [x for x in exponentials[:n] if isinstance(x[0], Compute) and x[0].dst == s.dst]
                return sum(x[1] for x in same) + least * s.after // s.of
        return None

    def exponentials(self, loop: For | While, found: list[Stmt]) -> Iterator[tuple[Stmt, int, int]]:
        """Each statement of a pass with its least and its most."""
        changed = {s.dst.buffer for s in found if isinstance(s, Compute | Load | Mma)}
        changed |= {s.name for s in found if isinstance(s, Let)}
        changed |= {loop.var} if isinstance(loop, For) else set()
        alike: set[Expr] = set()
        for s in found:
            arguments, most = self.written(s)
            new = [e for e in dict.fromkeys(arguments) if e not in alike and _reads(e) & changed]
            alike |= set(new)
            yield s, sum(self.held(axes_of(e, self.scope)) for e in new), most

    def written(self, s: Stmt) -> tuple[list[Expr], int]:
        """Arguments of the exponentials of a statement, and how many these are for all elements that a thread computes."""
        match s:
            case Compute(dst, value):
                found = list(self.within(value, tuple(a for a, _ in slot_lanes(dst, self.scope))))
            case Store(_, _, value, axes):
                found = list(self.within(value, axes))
            case Let(_, value):
                found = list(self.within(value, ()))
            case _:
                found = []
        return [e for e, _ in found], sum(self.held(axes) for _, axes in found)

    def within(self, e: Expr, axes: Axes) -> Iterator[tuple[Expr, Axes]]:
        """(argument, axes that it is computed over) of each exponential in a value over these axes."""
        if isinstance(e, Reduce):
            axes = union(axes, (e.axis,))
        if isinstance(e, Op) and e.name in EXPONENTIALS:
            yield e.args[0], axes
        for x in children(e):
            yield from self.within(x, axes)

    def held(self, axes: Axes) -> int:
        """Elements over these axes that a thread holds."""
        columns = [self.scope.agreed[a] for a in axes if a != self.row]
        return (ROWS if self.row in axes else 1) * (prod(columns) // QUAD if columns else 1)
