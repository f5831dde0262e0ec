"""Operands of a key step on waves: how keys and values come to shared memory and from there to registers, and the products.

Products are transposed: fragments of keys, or of values with features first, are left operands; queries and weights right ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import mul
from tilec.ir.expr import Expr, Int, Var
from tilec.ir.nodes import Axis, Buffer, Copy, Load, Mma, Move, Program, Role, Slot, Stmt, Window
from tilec.passes.key_parts import Parts
from tilec.passes.key_steps import at_tile, shifted, without_end_guard
from tilec.passes.overlap import Step
from tilec.passes.scope import fresh, key_axes

MEMORY, LDS = "vm", "lgkm"  # queues: the counters of loads from memory and of accesses to shared memory
SLOTS = 2
FLOATS = ("bf16", "f16")
PORTABLE = "the portable backend takes it"
BLOCK = 4  # rows and features that a lane transposes at once
FEATURES = 32  # that tiles are multiples of: rows of one matrix instruction, or two to four steps of what it contracts


@dataclass
class Operands:
    """`shared`: tile in shared memory of each operand, by the name of its register tile; `staged`: values on their way there."""

    program: Program
    role: Role
    step: Step
    keys_ahead: int
    values_ahead: int
    shared: dict[str, Buffer] = field(default_factory=dict)
    staged: tuple[Buffer, ...] = ()

    def __post_init__(self) -> None:
        self.q, self.k = key_axes(self.program)
        self.constants = dict(self.program.tile)
        assert self.role.var is not None
        self.instance = Var(self.role.var)
        self.tiles = {b.name: b for b in self.role.buffers}
        (self.size,) = {
            constant(a.size, self.constants) for b in self.tiles.values() for a in b.axes if a.name == self.k
        }
        assert self.size is not None
        (self.rows,) = {
            constant(a.size, self.constants) for b in self.tiles.values() for a in b.axes if a.name == self.q
        }
        self.keys = tuple(s for s in self.step.scores if isinstance(s, Load))
        loads = (*self.keys, *self.step.values)
        names = fresh(
            self.program, *(f"s{s.tensor}" for s in loads), *(f"{s.dst.buffer}_stage" for s in self.step.values)
        )
        for s, name in zip(loads, names, strict=False):
            b = self.tiles[s.dst.buffer]
            self._check(s, b)
            axes = b.axes if s in self.keys else b.axes[::-1]
            self.shared[b.name] = replace(b, name=name.name, space="shared", axes=axes, stages=SLOTS)
        self.share = self._share()
        self.staged = tuple(
            replace(self.tiles[s.dst.buffer], name=name.name, axes=self._slice(self.tiles[s.dst.buffer]))
            for s, name in zip(self.step.values, names[len(loads) :], strict=True)
        )
        operands = {x.buffer for s in self.step.scores if isinstance(s, Mma) for x in (s.a, s.b)}
        operands |= {s.dst.buffer for s in loads}
        wide = {b.name for b in self.tiles.values() if self.k in {a.name for a in b.axes}} - operands
        assert self.rows is not None
        if self.size % self.rows:
            message = f"{self.size} keys are no multiple of the {self.rows} rows of a matrix instruction"
            raise ScheduleFault("E0812", message, hint=f"a multiple of {self.rows} is legal")
        count = 2 if self.size % (2 * self.rows) == 0 else 1
        self.parts = Parts(self.k, frozenset(wide), count, self.size // count)

    def _check(self, s: Load, b: Buffer) -> None:
        if b.dtype not in FLOATS:
            note = f"matrix instructions take {' and '.join(FLOATS)} as they lie"
            raise ScheduleFault("E0811", f"`{s.tensor}` is {b.dtype}", note=note, hint=PORTABLE)
        if len(b.axes) != 2 or b.axes[0].name != self.k:
            raise ScheduleFault("E0811", f"`{s.tensor}` has no rows of keys", hint=PORTABLE)

    def _share(self) -> int:
        """Keys of a tile that each wave brings."""
        assert self.size is not None
        unit = self.role.count * BLOCK
        if self.size % unit:
            message = f"{self.size} keys are not shared out by {self.role.count} waves in blocks of {BLOCK}"
            raise ScheduleFault("E0812", message, hint=f"a multiple of {unit} is legal")
        return self.size // self.role.count

    def _slice(self, b: Buffer) -> tuple[Axis, ...]:
        return tuple(Axis(self.k, Int(self.share)) if a.name == self.k else a for a in b.axes)

    # ------------------------------------------------------------------------------------------ buffers

    def register(self, b: Buffer) -> Buffer:
        """A register tile as the transposed products have it: rows last, wide ones in parts, values features first."""
        values = {s.dst.buffer for s in self.step.values}
        if b.name in self.parts.wide:
            b = self.parts.buffer(b)
        if b.name in values or (len(b.axes) == 2 and b.axes[0].name == self.q and b.name not in self._queries):
            return replace(b, axes=b.axes[::-1])
        return b

    @property
    def _queries(self) -> set[str]:
        return {s.a.buffer for s in self.step.scores if isinstance(s, Mma)}

    # ------------------------------------------------------------------------------------------ to shared memory

    @property
    def own(self) -> Window:
        """Rows of a tile that this wave brings."""
        return Window(self.k, mul(self.share, self.instance), Int(self.share))

    def copy_keys(self, step: Step, slot: Expr, at: tuple[str, Var] | None = None) -> tuple[Stmt, ...]:
        """This wave's rows of each tile of keys; `at`: of the tile of that number instead, below the first one walked."""
        out = []
        for s in (x for x in step.scores if isinstance(x, Load)):
            s = s if at is None else at_tile(without_end_guard(s, at[0]), *at)
            s = shifted(s, self.k, self.own.start)
            out.append(
                Copy(Slot(self.shared[s.dst.buffer].name, slot, (self.own,)), s.tensor, s.index, s.where, queue=MEMORY)
            )
        return tuple(out)

    def load_values(self, step: Step) -> tuple[Stmt, ...]:
        """This wave's rows of the values, into registers."""
        moved = (shifted(s, self.k, self.own.start) for s in step.values)
        return tuple(
            replace(s, dst=Slot(b.name), queue=MEMORY, box=False) for s, b in zip(moved, self.staged, strict=True)
        )

    def store_values(self, slot: Expr) -> tuple[Stmt, ...]:
        """From registers to shared memory, features first."""
        return tuple(
            Move(Slot(self.shared[s.dst.buffer].name, slot, (self.own,)), Slot(b.name), LDS)
            for s, b in zip(self.step.values, self.staged, strict=True)
        )

    # ------------------------------------------------------------------------------------------ fragments

    def all_keys(self, slot: Expr) -> tuple[Stmt, ...]:
        return tuple(Move(Slot(s.dst.buffer), Slot(self.shared[s.dst.buffer].name, slot)) for s in self.keys)

    @property
    def ahead(self) -> int:
        """Features of the first part of keys that are read ahead, while half of the waves may still await theirs: it is the other
        half that brings the first of two parts.  Whole steps; none of an only part."""
        most = min(self.keys_ahead, self._features(self.keys[0]))
        return most // FEATURES * FEATURES if self.parts.count > 1 else 0

    def first_keys(self, slot: Expr) -> tuple[Stmt, ...]:
        """Of the first operand's first part, the first features."""
        ahead = self.ahead
        return (self._fragment(self.keys[0], slot, 0, 0, ahead, LDS),) if ahead else ()

    def rest_of_keys(self, slot: Expr) -> tuple[Stmt, ...]:
        out = []
        for s in self.keys:
            for part in range(self.parts.count):
                features = self._features(s)
                first = self.ahead if s is self.keys[0] and part == 0 else 0
                if first < features:
                    out.append(self._fragment(s, slot, part, first, features - first, None))
        return tuple(out)

    def _features(self, s: Load) -> int:
        size = constant(self.tiles[s.dst.buffer].axes[1].size, self.constants)
        assert size is not None
        return size

    def _fragment(self, s: Load, slot: Expr, part: int, first: int, count: int, queue: str | None) -> Move:
        d = self.tiles[s.dst.buffer].axes[1].name
        windows = (
            *((self._part(part),) if self.parts.count > 1 else ()),
            *((Window(d, Int(first), Int(count)),) if count < self._features(s) else ()),
        )
        return Move(Slot(s.dst.buffer, None, windows), Slot(self.shared[s.dst.buffer].name, slot, windows), queue)

    def _part(self, part: int) -> Window:
        return Window(self.k, Int(part * self.parts.size), Int(self.parts.size))

    def all_values(self, slot: Expr) -> tuple[Stmt, ...]:
        return tuple(Move(Slot(s.dst.buffer), Slot(self.shared[s.dst.buffer].name, slot)) for s in self.step.values)

    def first_values(self, slot: Expr) -> tuple[Stmt, ...]:
        assert self.size is not None
        return self._values(slot, 0, min(self.values_ahead, self.size), LDS)

    def rest_of_values(self, slot: Expr) -> tuple[Stmt, ...]:
        assert self.size is not None
        first = min(self.values_ahead, self.size)
        return self._values(slot, first, self.size - first, None)

    def _values(self, slot: Expr, first: int, count: int, queue: str | None) -> tuple[Stmt, ...]:
        if not count:
            return ()
        windows = (Window(self.k, Int(first), Int(count)),) if count != self.size else ()
        return tuple(
            Move(Slot(s.dst.buffer, None, windows), Slot(self.shared[s.dst.buffer].name, slot, windows), queue)
            for s in self.step.values
        )

    # ------------------------------------------------------------------------------------------ products

    def scores(self, step: Step) -> tuple[Stmt, ...]:
        """The products with queries, part by part."""
        products = [s for s in step.scores if isinstance(s, Mma)]
        out: list[Stmt] = []
        for part in range(self.parts.count):
            windows = (self._part(part),) if self.parts.count > 1 else ()
            for s in products:
                dst = Slot(s.dst.buffer, self.parts.stage(part))
                out.append(replace(s, dst=dst, a=Slot(s.b.buffer, None, windows), b=s.a))
        return tuple(out)

    def outputs(self, step: Step) -> tuple[Stmt, ...]:
        """The product of values with weights, part by part."""
        s = step.gather
        out: list[Stmt] = []
        for part in range(self.parts.count):
            windows = (self._part(part),) if self.parts.count > 1 else ()
            out.append(replace(s, a=Slot(s.b.buffer, None, windows), b=Slot(s.a.buffer, self.parts.stage(part))))
        return tuple(out)
