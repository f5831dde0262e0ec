"""How CTAs come by tiles of work, for programs of a producer and consumers: one each, in strides, or claimed as they go.

A claimed number goes from the producer to the consumers through two slots.  A CTA's first tile is its own number and uses no
slot, so slot and phase of the number after tile `it` count from it - 1.

Of packed and padded storage some tiles have no rows.  Whatever is filled once for a tile then counts those that have.

The CTAs of a cluster have one number: the first of them claims, and sends it to the slots of all; the producers of the
others read it there like consumers.  Slots are given back to the first CTA alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilec.ir.build import add, compare, floordiv, maximum, minimum, mod, mul, sub
from tilec.ir.expr import ZERO, Expr, Int, Read, Var, substitute
from tilec.ir.nodes import (
    Arrive,
    Bar,
    Barrier,
    Buffer,
    Claim,
    Compute,
    For,
    Global,
    If,
    Let,
    Program,
    Send,
    Slot,
    Stmt,
    Wait,
    While,
    map_exprs,
    rewrite,
)
from tilec.passes.scope import fresh

Kind = Literal["one", "static", "dynamic"]
SLOTS = 2


@dataclass(frozen=True)
class Work:
    """`steps` counts key steps, `done` tiles, `filled` those with rows; `tile` is the number of the current one.  `rows`: whether
    it has rows, None where every tile has."""

    kind: Kind
    tiles: Expr
    consumers: int
    rows: Expr | None
    cluster: int
    rank: Var | None
    steps: Var
    tile: Var
    count: Var
    done: Var
    filled: Var
    units: Var
    slots: Var
    counter: Var
    full: Var
    empty: Var

    @property
    def number(self) -> Expr:
        """Tiles with rows before this one."""
        if self.kind == "one":
            return ZERO
        return self.done if self.rows is None else self.filled

    def counted(self, s: If, then: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """What happens under `s`, with the count of tiles that have rows if it is they who happen."""
        if s.cond is not self.rows or self.kind == "one":
            return then
        return (*then, Let(self.filled.name, add(self.filled, 1)))

    @property
    def at_once(self) -> Expr:
        """Tiles that are worked on at a time."""
        return self.tiles if self.kind == "one" else minimum(self._clusters, self.tiles)

    @property
    def _clusters(self) -> Expr:
        return self.units if self.cluster == 1 else maximum(1, floordiv(self.units, self.cluster))

    @property
    def ctas(self) -> Expr:
        return mul(self.cluster, self.at_once)

    @property
    def extents(self) -> tuple[str, ...]:
        return () if self.kind == "one" else (self.units.name,)

    @property
    def tensors(self) -> tuple[Global, ...]:
        return (Global(self.counter.name, "counter", "i32", ()),) if self.kind == "dynamic" else ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (Buffer(self.slots.name, "shared", "i32", (), SLOTS),) if self.kind == "dynamic" else ()

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        if self.kind != "dynamic":
            return ()
        full = Barrier(self.full.name, "mbarrier", 1, SLOTS, tx=self.cluster > 1)
        readers = self.cluster * (self.consumers + 1) - 1  # beside the producer that claims
        return (full, Barrier(self.empty.name, "mbarrier", readers, SLOTS))

    def around(
        self,
        body: tuple[Stmt, ...],
        first: tuple[Stmt, ...] = (),
        last: tuple[Stmt, ...] = (),
        entry: tuple[Stmt, ...] = (),
    ) -> tuple[Stmt, ...]:
        """The body for every tile; `first` and `last` run once, as does `entry`, which is of the first tile."""
        start = Let(self.steps.name, ZERO)
        if self.kind == "one":
            return (start, *first, *body, *last)
        unit = floordiv(Var("cta"), self.cluster)
        env: dict[Expr, Expr] = {unit: self.tile}

        def of_tile(b: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            return rewrite(b, lambda s: (map_exprs(s, lambda e: substitute(e, env)),))

        loop = While(compare("<", self.tile, self.count), of_tile(body))
        counts = (Let(self.done.name, ZERO), Let(self.filled.name, ZERO), start)
        lets = (Let(self.count.name, self.tiles), Let(self.tile.name, unit), *counts)
        return (*lets, *first, *of_tile(entry), loop, *last)

    def claimed(self) -> tuple[Stmt, ...]:
        """The next tile, by the producer."""
        if self.kind != "dynamic":
            return self._stride()
        slot, number = self._slot()
        claim = (
            Claim(self.tile.name, self.counter.name),
            Let(self.done.name, add(self.done, 1)),
            self._free(number),
        )
        if self.rank is not None:
            send = Send(Slot(self.slots.name, slot), self.tile, Bar(self.full.name, slot))
            return (If(compare("==", self.rank, 0), (*claim, send)),)
        return (*claim, Compute(Slot(self.slots.name, slot), self.tile), Arrive(Bar(self.full.name, slot)))

    def followed(self) -> tuple[Stmt, ...]:
        """The next tile, by a producer whose CTA does not claim, at the end of a tile."""
        if self.kind != "dynamic" or self.rank is None:
            return ()
        return (If(compare("!=", self.rank, 0), self.received()),)

    def drained(self, free: Var) -> tuple[Stmt, ...]:
        """Waits, after the last tile, until no other CTA has slots to give back."""
        if self.kind != "dynamic" or self.rank is None:
            return ()
        wait = self._free(add(self.done, free))
        return (If(compare("==", self.rank, 0), (For(free.name, ZERO, Int(SLOTS), (wait,)),)),)

    def _free(self, number: Expr) -> Wait:
        """Until the slot may hold that number."""
        return Wait(Bar(self.empty.name, mod(number, SLOTS)), mod(add(floordiv(number, SLOTS), 1), 2))

    def received(self) -> tuple[Stmt, ...]:
        """The next tile, by a consumer."""
        if self.kind != "dynamic":
            return self._stride()
        slot, number = self._slot()
        return (
            Let(self.done.name, add(self.done, 1)),
            Wait(Bar(self.full.name, slot), mod(floordiv(number, SLOTS), 2)),
            Let(self.tile.name, Read(self.slots.name, slot)),
            Arrive(Bar(self.empty.name, slot), at=None if self.rank is None else ZERO),
        )

    def _stride(self) -> tuple[Stmt, ...]:
        if self.kind == "one":
            return ()
        return (Let(self.tile.name, add(self.tile, self.at_once)), Let(self.done.name, add(self.done, 1)))

    def _slot(self) -> tuple[Expr, Expr]:
        number = sub(self.done, 1)
        return mod(number, SLOTS), number


def work_of(program: Program, kind: Kind, consumers: int, rows: Expr | None = None) -> Work:
    """The plan for `program`, whose tile has work if `rows`, with names that are free in it.

    Raises ValueError if its CTAs already take several tiles."""
    grid = program.grid
    if grid.ctas is not mul(grid.cluster, grid.tiles):
        raise ValueError(f"the CTAs already share the tiles: {grid.order}")
    found = fresh(program, "n", "t", "tiles", "it", "rows", "SMS", "slots", "counter", "slot_full", "slot_empty")
    rank = None if grid.rank is None else Var(grid.rank)
    return Work(kind, grid.tiles, consumers, rows, grid.cluster, rank, *found)
