"""Which scalars of a role never are negative: what decides whether `//` and `%` are plain divisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.expr import Expr, Fetch, Int, Iota, Op, Read, Var
from tilec.ir.nodes import Claim, Compute, For, Let, Program, Seek, walk


@dataclass
class Signs:
    """`scalars` and `buffers` that never are negative; `tables`: tensors of lengths, offsets and pages; `positive`: names that
    are at least 1 in every block."""

    scalars: set[str]
    buffers: set[str]
    tables: frozenset[str]
    positive: frozenset[str] = field(default_factory=frozenset)

    def nonnegative(self, e: Expr) -> bool:
        """By syntax."""
        match e:
            case Int(v):
                return v >= 0
            case Var(name):
                return name in self.scalars
            case Read(name, _):
                return name in self.buffers
            case Iota():
                return True
            case Fetch(name, _):
                return name in self.tables
            case Op("-", (x, Int(1))):
                return self.at_least_one(x)
            case Op("+" | "*" | "//" | "%" | "min" | "abs", args):
                return all(map(self.nonnegative, args))
            case Op("max", args):
                return any(map(self.nonnegative, args))
            case Op("where", (_, a, b)):
                return self.nonnegative(a) and self.nonnegative(b)
        return False

    def at_least_one(self, e: Expr) -> bool:
        """By syntax."""
        match e:
            case Int(v):
                return v > 0
            case Var(name):
                return name in self.positive
            case Op("+", args):
                return all(map(self.nonnegative, args)) and any(map(self.at_least_one, args))
        return False


def signs(program: Program) -> Signs:
    """The largest consistent answer: everything is assumed not to be negative, and what may be is struck out until nothing
    changes.  A name of several roles counts as one.  Claimed numbers and extents are not negative."""
    out = Signs(
        {"cta", program.grid.rank or "cta", *program.extents, *(n for n, _ in program.tile)},
        {b.name for b in program.buffers if b.dtype == "i32"},
        frozenset(t.name for t in program.tensors if t.mode == "table"),
        frozenset(n for n, v in program.tile if v > 0),
    )
    given: list[tuple[set[str], str, Expr]] = [(out.scalars, n, e) for n, e in program.scalars]
    for role in program.roles:
        out.scalars |= {role.var} if role.var else set()
        for s in walk(role.body):
            match s:
                case Let(name, value):
                    given.append((out.scalars, name, value))
                case For():
                    given.append((out.scalars, s.var, s.lo))
                case Seek():
                    given += [(out.scalars, s.name, s.lo), (out.scalars, s.name, s.hi)]
                case Compute(dst, value) if dst.buffer in out.buffers:
                    given.append((out.buffers, dst.buffer, value))
                case Claim(name):
                    out.scalars.add(name)
    for names, name, _ in given:
        names.add(name)
    changed = True
    while changed:
        changed = False
        for names, name, value in given:
            if name in names and not out.nonnegative(value):
                names.discard(name)
                changed = True
    return out
