"""What passes over lowered programs ask of them: which axes are rows and keys, and which names are free."""

from __future__ import annotations

from tilec.dsl.faults import ScheduleFault
from tilec.ir.expr import Expr, Var, free_vars
from tilec.ir.nodes import Claim, For, Let, Program, Seek, map_exprs, walk


def key_axes(program: Program) -> tuple[str, str]:
    """Names of the row and the key axis, from the proof of the first key loop.  ScheduleFault E0811 if there is none."""
    for role in program.roles:
        for s in walk(role.body):
            if isinstance(s, For) and s.proof is not None:
                return s.proof.names
    raise ScheduleFault(
        "E0811", "no key is ever live, so there is nothing to pipeline", hint="the portable backend takes it"
    )


def fresh(program: Program, *stems: str) -> tuple[Var, ...]:
    """A scalar for each stem that nothing in the program is called, nor each other: the stem and as many `_` as it takes."""
    taken = names(program)
    out: list[Var] = []
    for name in stems:
        while name in taken:
            name += "_"
        taken.add(name)
        out.append(Var(name))
    return tuple(out)


def names(program: Program) -> set[str]:
    """Everything that has a name in the program."""
    found = {"cta", program.grid.rank or "cta", *(n for n, _ in (*program.tile, *program.scalars)), *program.extents}

    def note(e: Expr) -> Expr:
        found.update(free_vars(e))
        return e

    found |= {t.name for t in program.tensors} | {b.name for b in program.barriers} | {b.name for b in program.buffers}
    for role in program.roles:
        found |= {role.name, role.var or role.name} | {b.name for b in role.buffers}
        found |= {a.name for b in role.buffers for a in b.axes}
        for s in walk(role.body):
            if isinstance(s, Let | Seek | Claim):
                found.add(s.name)
            elif isinstance(s, For):
                found.add(s.var)
            map_exprs(s, note)
    return found
