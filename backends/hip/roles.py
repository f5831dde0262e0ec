"""A role's body, statement by statement.

Every lane of a wave runs the same scalar code, so scalars are uniform and branches on them do not diverge.  A statement other
than scalar arithmetic and control flow has its text in the program as a comment above it.
"""

from __future__ import annotations

from tilec.backends.hip import copies, tiles
from tilec.backends.hip.expressions import CPP, SCALAR
from tilec.backends.hip.mma import mma
from tilec.backends.hip.writer import Writer
from tilec.ir.expr import Fetch, Int, Op, Read, Var, walk
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

SEGMENTS = {"all": "every tile, masked", "left": "masked", "full": "no mask", "right": "masked"}
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
        case Let(name, Fetch(tensor, index)) if w.x.tensors[tensor].dtype == "i64":
            let(w, name, w.x.value(tensor, index, SCALAR), depth, "i64")
        case Let(name, Var(other)) if other in w.x.longs:
            let(w, name, w.x.show(s.value), depth, "i64")
        case Let(name, value):
            let(w, name, w.x.show(value), depth, "f32" if w.x.kind(value) == "float" else "i32")
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


def let(w: Writer, name: str, text: str, depth: int, dtype: str = "i32") -> None:
    """Declares a scalar, or assigns to one that an open scope has."""
    identifier = w.x.names.scalar(name)
    if any(name in scope for scope in w.declared):
        w.line(depth, f"{identifier} = {text};")
        return
    w.declared[-1].add(name)
    if dtype == "f32":
        w.x.floats.add(name)
    if dtype == "i64":
        w.x.longs.add(name)
    w.line(depth, f"{CPP[dtype]} {identifier} = {text};")


def branch(w: Writer, s: If, depth: int) -> None:
    """Scalars that both arms define are known after it."""
    others = {x.name for x in s.orelse if isinstance(x, Let)}
    for x in s.then:
        if isinstance(x, Let) and x.name in others and not any(x.name in scope for scope in w.declared):
            let(w, x.name, "0", depth, "f32" if w.x.kind(x.value) == "float" else "i32")
    w.line(depth, f"if ({w.x.show(s.cond)}) {{")
    block(w, s.then, depth + 1)
    if s.orelse:
        w.line(depth, "} else {")
        block(w, s.orelse, depth + 1)
    w.line(depth, "}")


def loop(w: Writer, s: For, depth: int) -> None:
    if s.proof is not None:
        w.comment(depth, f"{s.proof.segment} ({SEGMENTS[s.proof.segment]}): {s.proof.because}")
    var, lo, hi = w.x.names.scalar(s.var), w.x.text(s.lo, SCALAR), w.x.text(s.hi, SCALAR)
    w.line(depth, "#pragma clang loop unroll(disable)")
    if s.down:
        w.line(depth, f"for (int {var} = {w.x.show(Op('-', (s.hi, Int(1))))}; {var} >= {lo.at(5)}; --{var}) {{")
    else:
        w.line(depth, f"for (int {var} = {lo.text}; {var} < {hi.at(5)}; ++{var}) {{")
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
    let(w, s.name, lo, depth)
    name = w.x.names.scalar(s.name)
    w.line(depth, f"for (int below = {name}, above = {hi}; below < above;) {{")
    w.line(depth + 1, f"{name} = below + (above - below) / 2;")
    w.line(depth + 1, f"if ({w.x.show(s.cond)}) above = {name};")
    w.line(depth + 1, f"else below = {name} + 1;")
    w.line(depth + 1, f"{name} = below;")
    w.line(depth, "}")
