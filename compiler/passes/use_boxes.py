"""use_boxes: loads that are one box of their tensor are marked so, for targets that fetch boxes in one instruction (TMA).

Contract.  A Load of a tile gets `box = True` if its tile is a dense box: every index is a scalar, or a scalar plus the lanes of
one axis; the axes come in the order of the tile's; and its guard says no more than "inside the tensor", which the
hardware answers with zeros, or with `sequences` "inside the sequence", which is left to who copies.  Positions are written
out (`j * TK + iota(k)` for `@k`), so that a printer sees the corner of the box; a loop that no longer reads the positions no
longer computes them.  No result changes.

A stride between positions (residue order) or a gather (pages) leaves a Load as it is; with `sequences`, rows of a class of
positions and rows of pages are boxes too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir.build import add, conjuncts
from tilec.ir.classes import class_of
from tilec.ir.expr import ONE, ZERO, Expr, Fetch, Int, Iota, Op, Read, Var, substitute, walk
from tilec.ir.groups import groups_of
from tilec.ir.nodes import Buffer, Cluster, Compute, For, If, Load, Program, Slot, Stmt, While, rewrite
from tilec.ir.nodes import walk as statements
from tilec.ir.pages import at_lane, pages_of
from tilec.passes.tidy import mentioned

ROWS = 8  # of a swizzled block: a box that is part of a tile starts at one
WIDEST = 256  # elements of a box along one dimension: CUDA driver API, cuTensorMapEncodeTiled, boxDim


def use_boxes(
    program: Program, tensors: frozenset[str], *, sequences: bool = False, split: str | None = None
) -> Program:
    """The program with boxes marked among the loads of `tensors`, all loads of a tensor or none.  `sequences`: also those that
    end where their sequence does, before the tensor.  `split`: an axis that is cut up before anything is fetched along it."""
    roles = []
    for role in program.roles:
        rule = _Rule(program, {b.name: b for b in role.buffers}, dict(program.tile), sequences, split)
        marked = _mark(role.body, {}, rule)
        loads = [s for s in _loads(marked) if s.tensor in tensors]
        whole = {s.tensor for s in loads} - {s.tensor for s in loads if not s.box}
        roles.append(replace(role, body=rewrite(_choose(role.body, marked, whole), _drop_positions)))
    return program.with_(roles=tuple(roles))


@dataclass(frozen=True)
class _Rule:
    """What decides whether a load is a box."""

    program: Program
    buffers: dict[str, Buffer]
    sizes: dict[str, int]
    sequences: bool
    split: str | None


def _loads(body: tuple[Stmt, ...]) -> list[Load]:
    return [s for s in statements(body) if isinstance(s, Load)]


def _drop_positions(s: Stmt) -> tuple[Stmt, ...] | None:
    """A key loop without the positions that its body does not read."""
    if not (isinstance(s, For) and s.proof is not None):
        return None
    _, read = mentioned(tuple(x for x in s.body if not _is_position(x)))
    return (replace(s, body=tuple(x for x in s.body if not (_is_position(x) and _name(x) not in read))),)


def _is_position(s: Stmt) -> bool:
    """Whether it numbers lanes, and no more: values of lanes may read their numbers too."""
    if not isinstance(s, Compute):
        return False
    parts = list(walk(s.value))
    return any(isinstance(x, Iota) for x in parts) and not any(isinstance(x, Read) for x in parts)


def _name(s: Stmt) -> str:
    assert isinstance(s, Compute)
    return s.dst.buffer


def _choose(old: tuple[Stmt, ...], new: tuple[Stmt, ...], whole: set[str]) -> tuple[Stmt, ...]:
    """The marked statements, but loads of other tensors as they were."""
    out: list[Stmt] = []
    for a, b in zip(old, new, strict=True):
        match a, b:
            case Load(), Load():
                out.append(b if b.tensor in whole else a)
            case ((For() | While() | Cluster()), (For() | While() | Cluster())):
                out.append(replace(b, body=_choose(a.body, b.body, whole)))
            case If(), If():
                then, orelse = _choose(a.then, b.then, whole), _choose(a.orelse, b.orelse, whole)
                out.append(If(b.cond, then, orelse))
            case _:
                out.append(b)
    return tuple(out)


def _mark(body: tuple[Stmt, ...], positions: dict[Expr, Expr], rule: _Rule) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    known = dict(positions)
    for s in body:
        match s:
            case Compute(Slot(name), value) if len(rule.buffers[name].axes) == 1 and rule.buffers[name].dtype == "i32":
                known[Read(name)] = value
                out.append(s)
            case For() | While() | Cluster():
                out.append(replace(s, body=_mark(s.body, known, rule)))
            case If():
                then = _mark(s.then, known, rule)
                out.append(If(s.cond, then, _mark(s.orelse, known, rule)))
            case Load(Slot(name), table) if rule.sequences and rule.program.tensor(table).mode == "table":
                known[Read(name)] = Fetch(table, tuple(substitute(i, known) for i in s.index))
                out.append(s)
            case Load():
                out.append(_boxed(s, known, rule) or s)
            case _:
                out.append(s)
    return tuple(out)


def _boxed(s: Load, known: dict[Expr, Expr], rule: _Rule) -> Load | None:
    """The load as a box, or None."""
    tensor, tile, sizes = rule.program.tensor(s.tensor), rule.buffers[s.dst.buffer], rule.sizes
    if tensor.mode != "in" or s.other is not ZERO or len(tensor.dims) > 5:
        return None
    index = tuple(_from_start(substitute(i, known)) for i in s.index)
    rows = _as_rows(index, tile, rule)
    axes = [axis for i in rows if (axis := _lanes(i)) is not None]
    if any(_lanes(i) is None and not _is_scalar(i) for i in rows) or axes != [a.name for a in tile.axes]:
        return None
    extents = [sizes[a.size.name] if isinstance(a.size, Var) else a.size for a in tile.axes if a.name != rule.split]
    if any(isinstance(n, int) and n > WIDEST for n in extents) or tensor.dims[-1] is ONE:
        return None
    inside = set(zip(index, tensor.dims, strict=True))
    for guard in conjuncts(s.where):
        match guard:
            case Op("<", (position, end)):
                position = substitute(position, known)
                if isinstance(position, Op) and position.name in ("//", "%"):
                    position = position.args[0]
                whole = rule.sequences and _is_scalar(end) and _lanes(position) == axes[0]
                if whole or (position, end) in inside:
                    continue
        return None
    return replace(s, index=index, box=True)


def _as_rows(index: tuple[Expr, ...], tile: Buffer, rule: _Rule) -> tuple[Expr, ...]:
    """The index of a tile in pages, of groups of heads, or of a residue class, as if its rows were those of the sequence; any
    other as it is."""
    pages, groups, every = pages_of(index), groups_of(index), class_of(index)
    if every is not None and rule.sequences:
        return tuple(every.number if n == every.position else i for n, i in enumerate(index))
    if groups is not None and rule.sequences:
        named = {groups.head: ZERO, groups.position: groups.row}
        return tuple(named.get(n, i) for n, i in enumerate(index))
    if not rule.sequences or pages is None or pages.size % ROWS or _lanes(pages.position) != tile.axes[0].name:
        return index
    start = at_lane(pages.position, tile.axes[0].name, ZERO)
    match start:
        case Op("+", (Op("*", (_, size)), Int(0))) if size is tile.axes[0].size:
            named = {pages.page: ZERO, pages.row: pages.position}
            return tuple(named.get(n, i) for n, i in enumerate(index))
    return index


def _lanes(i: Expr) -> str | None:
    """The axis along whose lanes an index counts by one, from a scalar start."""
    match i:
        case Iota(axis):
            return axis
        case Op("+", (start, Iota(axis))) if _is_scalar(start):
            return axis
    return None


def _from_start(e: Expr) -> Expr:
    """`start + (first + iota)` with its scalars together."""
    match e:
        case Op("+", (start, Op("+", (first, Iota() as lane)))) if _is_scalar(start) and _is_scalar(first):
            return Op("+", (add(start, first), lane))
        case Op("+", (start, Iota())) if _is_scalar(start):
            return e
        case Op("+", (Iota() as lane, start)) if _is_scalar(start):
            return Op("+", (start, lane))
    return e


def _is_scalar(e: Expr) -> bool:
    return not any(isinstance(x, Read | Iota) for x in walk(e))


def corner(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """First element of a box, from the index of its Load."""

    def start(i: Expr) -> Expr:
        match i:
            case Iota():
                return Int(0)
            case Op("+", (s, Iota())):
                return s
        return i

    return tuple(start(i) for i in index)
