"""Tile programs as text that `ir.parse` reads back to an equal program.

The form is meant for a performance engineer: one line a statement, blocks by indentation, every queue, barrier, stage,
parity and window in sight.  `@S` is the value of buffer S, `iota(k)` the lane number along k, `max[k](x)` a reduction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tilec.ir.expr import Expr, Int, show
from tilec.ir.nodes import (
    Arrive,
    Await,
    Bar,
    Barrier,
    Buffer,
    Claim,
    Cluster,
    Compute,
    Copy,
    Fence,
    For,
    Global,
    Grid,
    If,
    Interleave,
    Layout,
    Let,
    Load,
    Mma,
    Move,
    Priority,
    Program,
    Proof,
    Role,
    Seek,
    Send,
    Slot,
    Stmt,
    Store,
    Sync,
    Wait,
    While,
)
from tilec.ir.text import is_word, word

STEP = "  "


def show_program(p: Program) -> str:
    """The whole program; ends with a newline."""
    return "\n".join(_program(p)) + "\n"


def show_stmt(s: Stmt) -> str:
    """The statement's own line, without nested blocks: how errors quote it."""
    return _line(s)


def show_slot(s: Slot) -> str:
    """`sK[j % 2]{k: 16 * w for 16}`: a buffer, its stage, and windows as first lane and number of lanes."""
    stage = "" if s.stage is None else f"[{show(s.stage)}]"
    windows = ", ".join(f"{w.axis}: {show(w.start)} for {show(w.size)}" for w in s.windows)
    return f"{s.buffer}{stage}" + (f"{{{windows}}}" if windows else "")


def _program(p: Program) -> Iterator[str]:
    name = p.name if all(is_word(part) for part in p.name.split(".")) else json.dumps(p.name)
    yield f"program {name} on {word(p.target)}"
    yield from (f"# {note}" for note in p.notes)
    if p.tile:
        yield "tile " + ", ".join(f"{n} = {v}" for n, v in p.tile)
    if p.extents:
        yield "extent " + ", ".join(p.extents)
    yield from (f"scalar {n} = {show(e)}" for n, e in p.scalars)
    yield from (_global(t) for t in p.tensors)
    coords = ", ".join(f"{n} = {show(e)}" for n, e in p.grid.coords)
    units = f"tiles {show(p.grid.tiles)} ctas {show(p.grid.ctas)}"
    yield f"grid {coords + ' ' if coords else ''}{units} order {_order(p.grid)}{_cluster(p.grid)}{_early(p.grid)}"
    yield from (f"shared {_buffer(b)}" for b in p.buffers)
    yield from (_barrier(b) for b in p.barriers)
    for role in p.roles:
        yield from _role(role)


def _order(g: Grid) -> str:
    return word(g.order) + (f"({_params(g.numbers)})" if g.numbers else "")


def _cluster(g: Grid) -> str:
    return "" if g.rank is None else f" cluster {g.cluster} as {g.rank}"


def _early(g: Grid) -> str:
    return " early" if g.early else ""


def _global(t: Global) -> str:
    return f"tensor {t.name} : {t.mode} {t.dtype}[{', '.join(map(show, t.dims))}]"


def _buffer(b: Buffer) -> str:
    out = f"{b.name} : {b.dtype}[{', '.join(f'{a.name} = {show(a.size)}' for a in b.axes)}]"
    if b.stages != 1:
        out += f" stages {b.stages}"
    if b.layout is not None:
        out += f" layout {_layout(b.layout)}"
    return out + (f" alias {b.alias}" if b.alias is not None else "")


def _layout(x: Layout) -> str:
    return f"{word(x.kind)}({_params(x.params)})"


def _params(params: tuple[tuple[str, int | str], ...]) -> str:
    return ", ".join(f"{word(n)} = {v if isinstance(v, int) else word(v)}" for n, v in params)


def _barrier(b: Barrier) -> str:
    out = f"barrier {b.name} : {b.kind} arrivals {b.arrivals}"
    if b.stages != 1:
        out += f" stages {b.stages}"
    return out + (" tx" if b.tx else "")


def _role(r: Role) -> Iterator[str]:
    out = f"role {r.name} : {r.count} {r.unit}"
    if r.var is not None:
        out += f" as {r.var}"
    if r.warps is not None:
        out += f" warps {r.warps}"
    if r.registers is not None:
        out += f" registers {r.registers}"
    yield out
    yield from (f"{STEP}register {_buffer(b)}" for b in r.buffers)
    yield from _block(r.body, STEP)


def _block(body: tuple[Stmt, ...], indent: str) -> Iterator[str]:
    if not body:
        yield indent + "pass"
    for s in body:
        yield indent + _line(s)
        match s:
            case For():
                if s.proof is not None:
                    yield indent + STEP + _proof(s.proof)
                yield from _block(s.body, indent + STEP)
            case While() | Cluster():
                yield from _block(s.body, indent + STEP)
            case If():
                yield from _block(s.then, indent + STEP)
                if s.orelse:
                    yield indent + "else"
                    yield from _block(s.orelse, indent + STEP)
            case Compute() if s.during:
                yield from _block(s.during, indent + STEP)


def _proof(f: Proof) -> str:
    keys = "" if f.keys is None else f" keys {show(f.keys)}"
    keys += "" if f.size is None else f" by {show(f.size)}"
    names = "" if f.names == ("q", "k") else f" over {f.names[0]}, {f.names[1]}"
    rows = f"{show(f.rows[0])} .. {show(f.rows[1])}"
    mask = f"mask {show(f.formula)} because {json.dumps(f.because)}"
    return f"proof {f.segment} part {f.part} rows {rows}{keys}{names} {mask}"


def _bar(b: Bar) -> str:
    return b.name if b.stage is Int(0) else f"{b.name}[{show(b.stage)}]"


def _access(tensor: str, index: tuple[Expr, ...]) -> str:
    return f"{tensor}[{', '.join(map(show, index))}]"


def _where(e: Expr | None) -> str:
    return "" if e is None else f" where {show(e)}"


def _queue(name: str | None) -> str:
    return "" if name is None else f" queue {word(name)}"


def _interleaving(parts: tuple[Interleave, ...]) -> str:
    shown = (f"{p.times} of ({', '.join(f'{word(kind)} {n}' for kind, n in p.counts)})" for p in parts)
    return f" order {', '.join(shown)}" if parts else ""


def _line(s: Stmt) -> str:
    match s:
        case Let(name, value):
            return f"let {name} = {show(value)}"
        case Seek(name, lo, hi, cond):
            return f"seek {name} in {show(lo)} .. {show(hi)} where {show(cond)}"
        case Compute():
            when = "" if s.unless is None else f" unless {show(s.unless)}"
            when += f" after {s.after} of {s.of}" if s.during or s.after or s.of else ""
            return f"{show_slot(s.dst)} = {show(s.value)}{when}"
        case Load():
            other = "" if s.other is Int(0) else f" other {show(s.other)}"
            box = " box" if s.box else ""
            return (
                f"load {show_slot(s.dst)} = {_access(s.tensor, s.index)}{_where(s.where)}{other}{box}{_queue(s.queue)}"
            )
        case Store():
            over = f" over {', '.join(s.axes)}" if s.axes else ""
            return f"store {_access(s.tensor, s.index)}{over} = {show(s.value)}{_where(s.where)}"
        case Mma():
            sign = "+=" if s.accumulate else "="
            return f"mma {show_slot(s.dst)} {sign} {show_slot(s.a)} . {show_slot(s.b)}{_queue(s.queue)}"
        case Move(dst, src, queue):
            return f"move {show_slot(dst)} = {show_slot(src)}{_queue(queue)}"
        case Copy():
            out = f"copy {show_slot(s.dst)} = {_access(s.tensor, s.index)}{_where(s.where)}"
            if s.signal is not None:
                out += f" signal {_bar(s.signal)}"
            return out + _queue(s.queue) + (" multicast" if s.multicast else "")
        case Send(dst, value, signal):
            return f"send {show_slot(dst)} = {show(value)} signal {_bar(signal)}"
        case Await(queue, pending):
            return f"await {word(queue)} pending {pending}"
        case Wait(bar, parity):
            return f"wait {_bar(bar)} parity {show(parity)}"
        case Arrive(bar, at):
            where = "" if at is None else f" at {show(at)}"
            return f"arrive {_bar(bar)}{where}{' everywhere' if s.everywhere else ''}"
        case Sync(bar):
            return f"sync {_bar(bar)}"
        case Claim(name, counter):
            return f"claim {name} from {counter}"
        case Priority(level):
            return f"priority {level}"
        case Fence(kind):
            return f"fence {word(kind)}"
        case If(cond):
            return f"if {show(cond)}"
        case For():
            stages = "" if s.stages is None else f" stages {s.stages}"
            return f"for {s.var} in {show(s.lo)} .. {show(s.hi)}{' down' if s.down else ''}{stages}"
        case While(cond):
            return f"while {show(cond)}"
        case Cluster(kind, _, order):
            return f"cluster {word(kind)}{_interleaving(order)}"
    raise TypeError(f"not a statement: {s!r}")
