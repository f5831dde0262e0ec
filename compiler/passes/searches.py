"""What a tile's searches found, from the producer to the consumers of `specialize`.

A search through a tensor (`seek`, of ends of documents) waits for one read after the other, thousands of cycles in all.  The
producer makes those that key loops depend on, a tile of work ahead, and hands over what they found: a slot of shared memory for
each, of which there are two, one full and one empty barrier for all.

    NUMBER  the slot and the phase count tiles as queries do (`work`): those that have rows
    OWN     a search that a tile's queries depend on (which sequence the tile is of) is short, and says whether there are
            any: each role makes it itself
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilec.ir.build import add, floordiv, mod
from tilec.ir.expr import Expr, Read, Var, free_vars
from tilec.ir.nodes import Arrive, Bar, Barrier, Buffer, Compute, Let, Load, Program, Role, Seek, Slot, Stmt, Wait, walk
from tilec.passes.rings import Ring, differing, load_scalars
from tilec.passes.scope import fresh

SLOTS = 2


@dataclass(frozen=True)
class Searches:
    """`buffers`: the slots of what each of `names` is; none without searches."""

    names: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    full: Barrier
    empty: Barrier

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        return (self.full, self.empty) if self.names else ()

    def handed(self, number: Expr) -> tuple[Stmt, ...]:
        """What was found for tile `number`, by the producer."""
        slot = mod(number, SLOTS)
        wait = Wait(Bar(self.empty.name, slot), mod(add(floordiv(number, SLOTS), 1), 2))
        stored = (Compute(Slot(b.name, slot), Var(name)) for name, b in zip(self.names, self.buffers, strict=True))
        return (wait, *stored, Arrive(Bar(self.full.name, slot)))

    def received(self, number: Expr) -> tuple[Stmt, ...]:
        """The same, by a consumer."""
        slot = mod(number, SLOTS)
        read = (Let(name, Read(b.name, slot)) for name, b in zip(self.names, self.buffers, strict=True))
        wait = Wait(Bar(self.full.name, slot), mod(floordiv(number, SLOTS), 2))
        return (wait, *read, Arrive(Bar(self.empty.name, slot)))

    def last(self, s: Stmt) -> bool:
        """Whether `s` is the search after which all are done."""
        return isinstance(s, Seek) and bool(self.names) and s.name == self.names[-1]

    def among(self, s: Stmt) -> bool:
        return isinstance(s, Seek) and s.name in self.names


def find_searches(program: Program, role: Role, rings: Iterable[Ring], rows: Expr | None) -> Searches:
    """Those of `role`, whose instances are the consumers; `rows`: whether a tile has some."""
    own = {r.tile.name for r in rings if r.own}
    loads = (s for s in walk(role.body) if isinstance(s, Load) and s.dst.buffer in own)
    queries = frozenset().union(*map(load_scalars, loads), () if rows is None else free_vars(rows))

    def decides(name: str) -> bool:
        return bool(queries & {name, *(s.name for s in differing(role, name))})

    found_by = dict.fromkeys(s.name for s in walk(role.body) if isinstance(s, Seek))
    names = tuple(n for n in found_by if not decides(n))
    slots = fresh(program, "edges_full", "edges_empty", *(f"{n}_slots" for n in names))
    full, empty, *found = (v.name for v in slots)
    return Searches(
        names,
        tuple(Buffer(name, "shared", "i32", (), SLOTS) for name in found),
        Barrier(full, "mbarrier", 1, SLOTS),
        Barrier(empty, "mbarrier", role.count, SLOTS),
    )
