"""A role's body, statement by statement.

Every lane of a wave runs the same scalar code, so scalars are uniform and branches on them do not diverge.  A statement other
than scalar arithmetic and control flow has its text in the program as a comment above it.
"""

from __future__ import annotations

from tilec.backends.hip import copies, tiles
from tilec.backends.hip.mma import mma
from tilec.backends.hip.writer import Writer
from tilec.ir.expr import Read, walk
from tilec.ir.nodes import (
    Await,
    Cluster,
    Compute,
    Copy,
    For,
    If,
    Interleave,
    Let,
    Load,
    Mma,
    Move,
    Priority,
    Seek,
    Stmt,
    Store,
    Sync,
    While,
)
from tilec.ir.print import show_stmt

WAITS = {"vm": "loads_pending", "lgkm": "shared_pending"}
# LLVM AMDGPU usage, llvm.amdgcn.sched.group.barrier: kinds of instructions.
KINDS = {"vector": 0x2, "matrix": 0x8, "global_read": 0x20, "lds_read": 0x100, "lds_write": 0x200, "special": 0x400}


def block(w: Writer, stmts: tuple[Stmt, ...], depth: int, known: frozenset[str] = frozenset()) -> None:
    """Statements of one scope, in which `known` is declared already.  Raises ValueError for what has no text."""
    w.declared.append(set(known))
    sequence(w, stmts, depth)
    w.declared.pop()


def sequence(w: Writer, stmts: tuple[Stmt, ...], depth: int) -> None:
    """Statements of the scope that is open."""
    for s in stmts:
        w.x.reduced.clear()
        if not isinstance(s, Let | If | While | For | Cluster | Seek):
            w.comment(depth, show_stmt(s))
        statement(w, s, depth)


def statement(w: Writer, s: Stmt, depth: int) -> None:
    match s:
        case Let():
            w.let(s, depth)
        case Seek():
            seek(w, s, depth)
        case Compute():
            tiles.compute(w, s, depth)
        case Load():
            tiles.load(w, s, depth)
        case Store():
            tiles.store(w, s, depth)
        case Mma():
            mma(w, s, depth)
        case Move():
            copies.move(w, s, depth)
        case Copy():
            copies.copy(w, s, depth)
        case Await(queue, pending) if queue in WAITS:
            w.line(depth, f"{WAITS[queue]}<{pending}>();")
        case Sync():
            w.line(depth, "barrier();")
        case Priority(level):
            w.line(depth, f"priority<{level}>();")
        case If():
            branch(w, s, depth)
        case While(cond, inner):
            w.line(depth, f"while ({w.x.show(cond)}) {{")
            block(w, inner, depth + 1)
            w.line(depth, "}")
        case For():
            loop(w, s, depth)
        case Cluster(kind, inner, order):
            w.comment(depth, f"---- {kind}")
            beside = kind in ("compute", "memory")
            for name in rows_read(w, inner) if beside else ():
                w.line(depth, f"held({name});")
            last = max((n for n, x in enumerate(inner) if not isinstance(x, Priority | Await)), default=-1)
            sequence(w, inner[: last + 1], depth)
            for name in rows_written(w, inner) if beside else ():
                w.line(depth, f"held({name});")
            ordered(w, order, depth)
            sequence(w, inner[last + 1 :], depth)
        case _:
            raise ValueError(f"the hip backend has no text for {type(s).__name__}")


def rows_read(w: Writer, inner: tuple[Stmt, ...]) -> list[str]:
    """Values of the lane's row that computations of a cluster read before it writes them: held back there, they hold back what
    is computed from them, which the compiler would move to where its operands are ready."""
    found: dict[str, None] = {}
    written: set[str] = set()
    for s in inner:
        if not isinstance(s, Compute):
            continue
        for e in (s.value, *(() if s.unless is None else (s.unless,))):
            for x in walk(e):
                if isinstance(x, Read) and x.buffer not in written and w.is_row(x.buffer):
                    found.setdefault(w.x.names.buffer(x.buffer))
        written.add(s.dst.buffer)
    return list(found)


def rows_written(w: Writer, inner: tuple[Stmt, ...]) -> list[str]:
    """Values of the lane's row that computations of a cluster write: held at its end, and with them what they are made of."""
    names = (x.dst.buffer for x in inner if isinstance(x, Compute) and w.is_row(x.dst.buffer))
    return [w.x.names.buffer(n) for n in dict.fromkeys(names)]


def ordered(w: Writer, order: tuple[Interleave, ...], depth: int) -> None:
    """The order of the instructions before this, back to the last edge; a priority is one, and so is what waits."""
    for part in order:
        if unknown := [kind for kind, _ in part.counts if kind not in KINDS]:
            raise ValueError(f"the hip backend orders no instructions of kind {unknown[0]}")
        w.loop(depth, "i", 0, part.times)
        for kind, count in part.counts:
            w.line(depth + 1, f"issue<{KINDS[kind]:#x}, {count}>();")
        w.line(depth, "}")
    if order:
        w.line(depth, "edge();")


def branch(w: Writer, s: If, depth: int) -> None:
    w.open_branch(s, depth)
    block(w, s.then, depth + 1)
    if s.orelse:
        w.line(depth, "} else {")
        block(w, s.orelse, depth + 1)
    w.line(depth, "}")


def loop(w: Writer, s: For, depth: int) -> None:
    w.open_loop(s, depth, "#pragma clang loop unroll(disable)")
    w.loops += 1
    before = w.matrices
    w.line(depth + 1, "edge();")
    block(w, s.body, depth + 1, frozenset({s.var}))
    w.loops -= 1
    w.looped.append(w.matrices - before)
    w.line(depth, "}")


def seek(w: Writer, s: Seek, depth: int) -> None:
    """Bisection."""
    lo, hi = w.x.show(s.lo), w.x.show(s.hi)
    w.comment(depth, show_stmt(s))
    w.assign(s.name, lo, depth)
    name = w.x.names.scalar(s.name)
    w.line(depth, f"for (int below = {name}, above = {hi}; below < above;) {{")
    w.line(depth + 1, f"{name} = below + (above - below) / 2;")
    w.line(depth + 1, f"if ({w.x.show(s.cond)}) above = {name};")
    w.line(depth + 1, f"else below = {name} + 1;")
    w.line(depth + 1, f"{name} = below;")
    w.line(depth, "}")
