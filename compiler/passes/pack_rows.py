"""pack_rows: the query heads that share a key head as rows of one tile, for calls of few queries.

Contract.  In: the program of `online_softmax`, one query head to a tile.  Out: row r of a tile is position r // P of head
G h + r % P, h a key head of G query heads and P their number in memory's boxes: G where it divides 64 or 64 divides it, else
the next power of 2, with the rows of no head dead.  Keys and values are then read once for each key head, and a tile of 64
rows is not mostly empty where a sequence has one query.  Rows are independent of each other; no result changes.

    GROUP    G query heads read keys and values through `h // G`, or, where these have no `h`, all of them do
    ROWS     what the mask and the scores read of a row's position is r // P; bounds of loops are those of the first and the
             last position of the tile
    PARAM    a float that is read once for a head (a slope, a sink) becomes a value of each row

A program without groups is left as it is, and so are packed rows, and a head that decides which keys are live.
Source: packed GQA rows as in FlashAttention-3, Shah et al., arXiv 2407.08608, section 4 (appendix on multi-query attention).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir import storage
from tilec.ir.attention import Attention
from tilec.ir.axes import kind_of_dtype
from tilec.ir.build import add, all_of, cdiv, compare, floordiv, minimum, mod, mul, sub
from tilec.ir.expr import Expr, Fetch, Int, Iota, Op, Read, Var, free_vars, substitute
from tilec.ir.expr import walk as parts
from tilec.ir.nodes import (
    Axis,
    Buffer,
    Cluster,
    Compute,
    For,
    If,
    Let,
    Load,
    Program,
    Slot,
    Stmt,
    Store,
    map_exprs,
    rewrite,
    walk,
)
from tilec.passes.lower_attention import grid_of, map_lets
from tilec.passes.scope import fresh

BOX = 64  # rows that one warpgroup copies


@dataclass(frozen=True)
class Group:
    """`size` query heads, the values of index `head`, to a key head, of which there are `shared`; `room`: P."""

    head: str
    size: int
    shared: Expr
    room: int


def group_of(attn: Attention) -> Group | None:
    """Rule GROUP."""
    if attn.index(attn.q).storage.kind == "packed":
        return None
    tensors = [attn.tensor(n) for n in dict.fromkeys((*(key for _, key in attn.pairs), attn.value))]
    for i in attn.outer:
        read = {e for t in tensors for e in t.index if i.name in free_vars(e)}
        found: tuple[int, Expr]
        if not read and isinstance(i.extent, Int):
            found = i.extent.value, Int(1)
        elif len(read) == 1 and isinstance(e := next(iter(read)), Op) and e.name == "//":
            divisor = e.args[1]
            if e.args[0] is not Var(i.name) or not isinstance(divisor, Int) or any(e not in t.index for t in tensors):
                continue
            found = divisor.value, floordiv(i.extent, divisor)
        else:
            continue
        size, shared = found
        if size > 1:
            return Group(i.name, size, shared, size if size % BOX == 0 else 1 << (size - 1).bit_length())
    return None


def pack_rows(program: Program, attn: Attention) -> Program:
    """The program with groups of heads as rows, or as it was.  Raises ValueError if its block map was chosen already."""
    if program.grid.order != "linear":
        raise ValueError("rows are packed before the blocks are ordered")
    group = group_of(attn)
    if group is None or _decided(program, group.head):
        return program
    (role,) = program.roles
    (rows, _), *_ = program.grid.coords
    tile = next(a.size for b in role.buffers for a in b.axes if a.name == attn.q)
    extent = attn.index(attn.q).extent
    outer = tuple((n, group.shared if n == group.head else size) for n, size in program.grid.coords[1:])
    coords = (
        (rows, cdiv(mul(storage.rows_symbol(attn.index(attn.q)), group.room), tile)),
        *(c for c in outer if c != (group.head, Int(1))),
    )
    first = mul(Var(rows), tile)
    row = add(first, Iota(attn.q))
    inside = compare("<", mod(row, group.room), group.size) if group.room != group.size else all_of()
    base: Expr = Int(0) if group.shared is Int(1) else mul(Var(group.head), group.size)
    heads = _Heads(
        group, add(base, mod(row, group.room)), inside, _values(program, role.body, group.head, attn.q, tile)
    )
    last = sub(minimum(add(floordiv(add(first, sub(tile, 1)), group.room), 1), extent), 1)
    positions: dict[str, Stmt] = {
        f"{attn.q}_first": Let(f"{attn.q}_first", floordiv(first, group.room)),
        f"{attn.q}_last": Let(f"{attn.q}_last", last),
    }

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        match s:
            case Cluster("map"):
                return (Cluster("map", map_lets(coords, Var("cta"))),)
            case Let(name) if name in positions:
                return (positions[name],)
            case Compute(Slot(name, None, ()), value) if name == attn.q and Iota(attn.q) in parts(value):
                return (replace(s, value=floordiv(row, group.room)),)
            case _:
                return heads.of(s)

    body = rewrite(role.body, rule)
    buffers = (*role.buffers, *(b for b, _ in heads.values.values()))
    return program.with_(grid=grid_of(coords), roles=(replace(role, body=body, buffers=buffers),))


def _decided(program: Program, head: str) -> bool:
    """Whether the head is a matter of control or of integers somewhere: then it is not the same for all rows of a tile."""
    differ = {head}
    for s in (s for r in program.roles for s in walk(r.body)):
        match s:
            case Let(name, Fetch(tensor) as value) if free_vars(value) & differ:
                if kind_of_dtype(program.tensor(tensor).dtype) != "float" or free_vars(value) & (differ - {head}):
                    return True
                differ.add(name)
            case Let(_, value) | If(value) if free_vars(value) & differ:
                return True
            case For() if (free_vars(s.lo) | free_vars(s.hi)) & differ:
                return True
    return False


def _values(
    program: Program, body: tuple[Stmt, ...], head: str, q: str, tile: Expr
) -> dict[Expr, tuple[Buffer, Fetch]]:
    """Rule PARAM: the scalars that differ from head to head, and the row tiles that take their place."""
    out: dict[Expr, tuple[Buffer, Fetch]] = {}
    for s in walk(body):
        if isinstance(s, Let) and isinstance(s.value, Fetch) and head in free_vars(s.value):
            (name,) = fresh(program, f"{s.name}_rows")
            out[Var(s.name)] = Buffer(name.name, "register", "f32", (Axis(q, tile),)), s.value
    return out


@dataclass(frozen=True)
class _Heads:
    """Statements with heads that differ from row to row."""

    group: Group
    head: Expr
    inside: Expr
    values: dict[Expr, tuple[Buffer, Fetch]]

    def of(self, s: Stmt) -> tuple[Stmt, ...] | None:
        """`s` with `h // G` the key head, and any other `h` that of the row."""
        if isinstance(s, Let) and Var(s.name) in self.values:
            buffer, fetch = self.values[Var(s.name)]
            index = tuple(map(self.expr, fetch.index))
            return (Load(Slot(buffer.name), fetch.tensor, index, self.inside),)
        own = any(self._mentions(e) for e in _expressions(s))
        out = map_exprs(s, self.expr)
        if own and isinstance(out, Load | Store):
            out = replace(out, where=all_of(*((out.where,) if out.where is not None else ()), self.inside))
        return (out,)

    def _mentions(self, e: Expr) -> bool:
        return self.group.head in free_vars(substitute(e, {self._shared: Int(0)}))

    @property
    def _shared(self) -> Expr:
        return Op("//", (Var(self.group.head), Int(self.group.size)))

    def expr(self, e: Expr) -> Expr:
        head = Var(self.group.head)
        key = Int(0) if self.group.shared is Int(1) else head
        values = {v: Read(b.name) for v, (b, _) in self.values.items()}
        return substitute(e, {self._shared: key, head: self.head, **values})


def _expressions(s: Stmt) -> list[Expr]:
    found: list[Expr] = []

    def note(e: Expr) -> Expr:
        found.append(e)
        return e

    map_exprs(s, note)
    return found
