"""A role's body, statement by statement.

Every thread of a role runs the same scalar code, so scalars are uniform in a warp and branches on them do not diverge.  What
one thread does for all of a warp (a copy, an arrival, a claim, a scalar to shared memory) its first lane does.  A statement
other than scalar arithmetic and control flow has its text in the program as a comment above it.
"""

from __future__ import annotations

from tilec.backends.cuda import copies, cp_async, fragments, mma, mma_sync
from tilec.backends.cuda.expressions import SCALAR
from tilec.backends.cuda.shared import arrivals, unit_of, warps_of
from tilec.backends.cuda.writer import Writer
from tilec.ir.expr import Var, free_vars, substitute
from tilec.ir.nodes import (
    Arrive,
    Await,
    Claim,
    Cluster,
    Compute,
    Copy,
    Fence,
    For,
    If,
    Let,
    Load,
    Mma,
    Seek,
    Send,
    Stmt,
    Store,
    Sync,
    Wait,
    While,
)
from tilec.ir.print import show_stmt

PROBE = "place of search"  # with a number, a scalar that no program has
UNSETTLED = "products are in flight across the end of a block, and not on every path to there"


def body(w: Writer, depth: int) -> None:
    """All of a role, from its register tiles on.  Raises ValueError for statements that the cuda backend does not print."""
    for b in w.role.buffers:
        w.line(depth, f"{w.holds(b)} {w.x.names.buffer(b.name)}[{w.registers(b)}];")
    block(w, w.role.body, depth, frozenset() if w.role.var is None else frozenset({w.role.var}))


def block(w: Writer, stmts: tuple[Stmt, ...], depth: int, known: frozenset[str] = frozenset()) -> None:
    """Statements of one scope, in which `known` is declared already."""
    w.declared.append(set(known))
    sequence(w, stmts, depth)
    w.declared.pop()


def sequence(w: Writer, stmts: tuple[Stmt, ...], depth: int) -> None:
    """Statements of the scope that is open."""
    searches: list[Seek] = []
    for n, s in enumerate(stmts):
        w.x.reduced.clear()
        if isinstance(s, Seek):
            searches.append(s)
            following = stmts[n + 1] if n + 1 < len(stmts) else None
            if not isinstance(following, Seek) or not independent(following, searches):
                seek(w, searches, depth)
                searches = []
            continue
        if not isinstance(s, Let | If | While | For | Cluster):
            w.comment(depth, show_stmt(s))
        statement(w, s, depth)


def statement(w: Writer, s: Stmt, depth: int) -> None:
    match s:
        case Let():
            w.let(s, depth)
        case Claim(name, counter):
            if w.role.unit != "warp":
                raise ValueError("the cuda backend claims tiles in a warp")
            tiles = w.x.show(w.kernel.program.grid.tiles)
            cluster = w.kernel.program.grid.cluster
            more = f", {cluster}" if cluster > 1 else ""
            w.assign(name, f"claim({w.x.names.pointer(counter)}, {tiles}{more})", depth)
        case Compute():
            fragments.compute(w, s, depth, lambda inner, at: sequence(w, inner, at))
        case Load():
            fragments.load(w, s, depth)
        case Store():
            fragments.store(w, s, depth)
        case Mma() if w.role.unit == "warp":
            mma_sync.mma(w, s, depth)
        case Mma():
            mma.mma(w, s, depth)
        case Await(cp_async.QUEUE, pending):
            cp_async.await_(w, pending, depth)
        case Await():
            mma.await_(w, s, depth)
        case Copy() if s.queue == cp_async.QUEUE:
            cp_async.copy(w, s, depth)
        case Copy():
            copies.copy(w, s, depth)
        case Wait(bar, parity):
            _, address = w.barrier(bar)
            w.line(depth, f"wait({address}, {w.x.show(parity)});")
            if w.role.unit == "warp":  # its lanes go on together: none may find the barrier two phases on
                w.line(depth, "__syncwarp();")
        case Arrive():
            arrive(w, s, depth)
        case Send(dst, value, signal):
            if w.role.unit != "warp":
                raise ValueError("the cuda backend sends to other blocks from a warp")
            _, there = w.barrier(signal)
            to = w.x.address(dst.buffer, dst.stage)
            w.line(depth, f"send_int<{w.kernel.program.grid.cluster}>({to}, {w.x.show(value)}, {there});")
        case Sync(bar):
            b, at = w.barrier(bar)
            w.line(depth, f"named_sync({at}, {arrivals(w.kernel.program, b)});")
        case Fence("async_proxy"):
            w.line(depth, "fence_async_proxy();")
        case If():
            branch(w, s, depth)
        case While(cond, inner):
            w.line(depth, f"while ({w.x.show(cond)}) {{")
            settled(w, inner, depth + 1)
            w.line(depth, "}")
        case For():
            loop(w, s, depth)
        case Cluster(kind, inner):
            w.comment(depth, f"---- {kind}")
            sequence(w, inner, depth)
        case _:
            raise ValueError(f"the cuda backend has no text for {type(s).__name__}")


def arrive(w: Writer, s: Arrive, depth: int) -> None:
    """A warp's share of an arrival: all of it for a warp role, of which a barrier may count several."""
    program = w.kernel.program
    b, bar = w.barrier(s.bar)
    if b.kind == "named":
        w.line(depth, f"named_arrive({bar}, {arrivals(program, b)});")
        return
    count = unit_of(program, b) // warps_of(w.role)
    more = f", {count}" if count > 1 else ""
    if s.everywhere:
        w.line(depth, f"arrive_everywhere<{program.grid.cluster}>({bar}{more});")
    elif s.at is not None:
        w.line(depth, f"arrive_at({bar}, {w.x.show(s.at)}{more});")
    else:
        w.line(depth, f"arrive({bar}{more});")


def branch(w: Writer, s: If, depth: int) -> None:
    w.open_branch(s, depth)
    before = in_flight(w)
    block(w, s.then, depth + 1)
    after, w.in_flight = in_flight(w), before
    if s.orelse:
        w.line(depth, "} else {")
        block(w, s.orelse, depth + 1)
    if in_flight(w) != after:
        raise ValueError(UNSETTLED)
    w.line(depth, "}")


def in_flight(w: Writer) -> dict[str, list[str]]:
    """Destinations of the products of each queue that has some in flight."""
    return {queue: list(names) for queue, names in w.in_flight.items() if names}


def settled(w: Writer, stmts: tuple[Stmt, ...], depth: int, known: frozenset[str] = frozenset()) -> None:
    """A block that may run any number of times.  Raises ValueError unless it leaves the products in flight that it found."""
    before = in_flight(w)
    block(w, stmts, depth, known)
    if in_flight(w) != before:
        raise ValueError(UNSETTLED)


def loop(w: Writer, s: For, depth: int) -> None:
    w.open_loop(s, depth, "#pragma unroll 1")
    settled(w, s.body, depth + 1, frozenset({s.var}))
    w.line(depth, "}")


def independent(s: Seek, others: list[Seek]) -> bool:
    """Whether a search reads nothing that these find."""
    read = free_vars(s.cond) | free_vars(s.lo) | free_vars(s.hi)
    return not read & {x.name for x in others}


def seek(w: Writer, group: list[Seek], depth: int) -> None:
    """Searches that do not depend on each other, at once: each lane of a warp probes the end of a part of what is left, so that
    a round leaves a 32nd, and 16384 positions take three reads one after the other where bisection takes fourteen."""
    ends, open_ = [], []
    for s in group:
        w.comment(depth, show_stmt(s))
        w.assign(s.name, w.x.show(s.lo), depth)
        w.fresh += 1
        ends.append(f"end_{w.fresh} = {w.x.show(s.hi)}")
        open_.append(f"{w.x.names.scalar(s.name)} < end_{w.fresh}")
    numbers = range(w.fresh - len(group) + 1, w.fresh + 1)
    w.line(depth, f"for (int {', '.join(ends)}; {' || '.join(open_)};) {{")
    for s, n, left in zip(group, numbers, open_, strict=True):
        name = w.x.names.scalar(s.name)
        place = Var(f"{PROBE} {n}")
        w.x.signs.scalars.add(place.name)
        probe = w.x.names(f"probe_{n}", "scalar", place.name)
        cond = w.x.text(substitute(s.cond, {Var(s.name): place}), SCALAR).at(3)
        w.line(depth + 1, f"const int part_{n} = (end_{n} - {name} + 31) / 32;")
        w.line(depth + 1, f"const int {probe} = min({name} + part_{n} * (lane + 1), end_{n}) - 1;")
        w.line(depth + 1, f"const unsigned found_{n} = lanes_where({left} && {cond});")
    for s, n in zip(group, numbers, strict=True):
        w.line(depth + 1, f"narrow({w.x.names.scalar(s.name)}, end_{n}, part_{n}, found_{n});")
    w.line(depth, "}")
