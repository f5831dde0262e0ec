"""How many tiles a program visits, and how many (row, key) pairs of them are live: found by running its scalar statements.

Every tile coordinate is tried; of independent problems (batch, heads) one stands for all unless the loop bounds or the mask
read its coordinate.  A tile that the program takes without a mask is live by proof, so only masked tiles are looked at,
element by element.  What the program skips is dead by proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from tilec.arith.evaluate import evaluate
from tilec.ir.attention import Attention
from tilec.ir.expr import Expr, Fetch, Iota, Var, free_vars, substitute, walk
from tilec.ir.nodes import Cluster, Compute, For, If, Let, Program, Seek, Stmt, While
from tilec.ir.nodes import walk as walk_statements

_AXIS = Var("lane")  # stands for `iota` of whichever axis


@dataclass(frozen=True)
class Counts:
    """Over the whole call: (row tile, key tile) pairs in all, visited, and visited without a mask; live elements, and
    elements of visited tiles."""

    tiles: int
    visited: int
    full: int
    live: int
    computed: int

    @property
    def waste(self) -> float:
        """Elements computed per live element."""
        return self.computed / self.live if self.live else 1.0

    def to_data(self) -> dict[str, int]:
        """JSON values."""
        return {
            "tiles": self.tiles,
            "visited": self.visited,
            "full": self.full,
            "live": self.live,
            "computed": self.computed,
        }

    def lines(self) -> list[str]:
        """For a person."""

        def share(n: int) -> str:
            return f"{n:>14,}  {n / self.tiles:6.1%}" if self.tiles else f"{n:>14,}"

        return [
            f"  skipped  {share(self.tiles - self.visited)}",
            f"  masked   {share(self.visited - self.full)}",
            f"  no mask  {share(self.full)}",
            f"  live elements {self.live:,}, {self.waste:.3f} computed for each",
        ]


@dataclass(frozen=True)
class _Visit:
    """The tiles lo … hi of one loop, with the scalars of the program at that point."""

    loop: For
    lo: int
    hi: int
    env: Mapping[str, int]


def bound_statements(program: Program) -> list[Stmt]:
    """The `let` and `seek` lines that the bounds of the key loops depend on, in order; the block map is left out."""
    return _lines_for(program, [e for loop in key_loops(program) for e in (loop.lo, loop.hi)])


def _lines_for(program: Program, exprs: list[Expr]) -> list[Stmt]:
    """The scalar lines that `exprs` depend on."""
    wanted = set().union(*map(free_vars, exprs))
    kept: list[Stmt] = []
    for s in reversed([s for r in program.roles for s in _outside_map(r.body)]):
        if isinstance(s, Let | Seek) and s.name in wanted:
            wanted |= set().union(*map(free_vars, _reads(s)))
            kept.append(s)
    return kept[::-1]


def key_loops(program: Program) -> list[For]:
    """Loops over key tiles, each with the proof that it covers what it must."""
    return [s for r in program.roles for s in walk_statements(r.body) if isinstance(s, For) and s.proof is not None]


def _outside_map(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for s in body:
        if isinstance(s, Cluster) and s.kind == "map":
            continue
        yield s
        if isinstance(s, Cluster | While):
            yield from _outside_map(s.body)
        elif isinstance(s, If):
            yield from _outside_map(s.then)


def _reads(s: Stmt) -> tuple[Expr, ...]:
    match s:
        case Let(_, value):
            return (value,)
        case Seek(_, lo, hi, cond):
            return lo, hi, cond
        case _:
            return ()


def count_tiles(program: Program, attn: Attention, sizes: Mapping[str, int]) -> Counts | None:
    """Counts for these extents (every symbol of the call); None where what is visited depends on tensors."""
    needed = _needed(program, [attn.mask, *_positions(program, attn).values()], sizes)
    if needed is None:
        return None
    constants = {**sizes, **dict(program.tile)}
    tried, repeats = [], 1
    for name, extent in program.grid.coords:
        count = evaluate(extent, constants)
        if name in needed:
            tried.append([(name, i) for i in range(count)])
        else:
            repeats *= count
    visited = full = live = row_tiles = 0
    for at in product(*tried):
        env = constants | {n: 0 for n, _ in program.grid.coords} | dict(at)
        row_tiles += 1
        for visit in _visits(tuple(_outside_map(program.roles[0].body)), env):
            visited += visit.hi - visit.lo
            no_mask = visit.loop.proof is not None and visit.loop.proof.segment == "full"
            full += (visit.hi - visit.lo) if no_mask else 0
            live += _live(program, attn, visit, no_mask)
    keys = evaluate(attn.index(attn.k).extent, sizes)
    size = tile_of(program, attn.k)
    area = tile_of(program, attn.q) * size
    tiles = row_tiles * -(-keys // size)
    return Counts(tiles * repeats, visited * repeats, full * repeats, live * repeats, visited * repeats * area)


def _needed(program: Program, more: list[Expr], sizes: Mapping[str, int]) -> set[str] | None:
    """The names that the bounds of key loops and `more` depend on; None if on tensors."""
    roots = [*(e for loop in key_loops(program) for e in (loop.lo, loop.hi)), *more]
    lines = [s for s in _lines_for(program, roots) if not (isinstance(s, Let) and s.name in sizes)]
    read = [*roots, *(e for s in lines for e in _reads(s))]
    return None if any(map(_reads_tensor, read)) else set().union(*map(free_vars, read))


def key_ranges(
    program: Program, sizes: Mapping[str, int]
) -> tuple[tuple[str, ...], dict[tuple[int, ...], tuple[int, int]]] | None:
    """(names, {coordinates of those names: first and last tile of keys that is visited, plus one}); None where that depends on
    tensors."""
    needed = _needed(program, [], sizes)
    if needed is None:
        return None
    constants = {**sizes, **dict(program.tile)}
    tried = [(name, evaluate(extent, constants)) for name, extent in program.grid.coords if name in needed]
    body, rest = tuple(_outside_map(program.roles[0].body)), {n: 0 for n, _ in program.grid.coords}
    out = {}
    for at in product(*(range(count) for _, count in tried)):
        env = constants | rest | dict(zip((n for n, _ in tried), at, strict=True))
        some = [v for v in _visits(body, env) if v.hi > v.lo]
        out[at] = (min((v.lo for v in some), default=0), max((v.hi for v in some), default=0))
    return tuple(n for n, _ in tried), out


def tile_of(program: Program, index: str) -> int:
    """Tile size of the row or key index."""
    for b in program.roles[0].buffers:
        for a in b.axes:
            if a.name == index:
                return evaluate(a.size, dict(program.tile))
    raise KeyError(index)


def _visits(body: tuple[Stmt, ...], env: dict[str, int]) -> Iterator[_Visit]:
    """Runs the scalar statements in order; `body` is flat, and a condition on the tile's rows is taken as met."""
    for s in body:
        match s:
            case Let(name, value) if free_vars(value) <= env.keys() and not _reads_tensor(value):
                env[name] = evaluate(value, env)
            case For() if s.proof is not None:
                yield _Visit(s, evaluate(s.lo, env), max(evaluate(s.lo, env), evaluate(s.hi, env)), dict(env))


def _positions(program: Program, attn: Attention) -> dict[str, Expr]:
    """Logical positions of the tile's rows and keys, over the loop variable, scalars and `iota`."""
    out: dict[str, Expr] = {}
    for r in program.roles:
        for s in walk_statements(r.body):
            if isinstance(s, Compute) and s.dst.buffer in (attn.q, attn.k):
                out.setdefault(s.dst.buffer, s.value)
    return out


def _live(program: Program, attn: Attention, visit: _Visit, no_mask: bool) -> int:
    """Live elements of the tiles of one loop."""
    import numpy as np

    from tilec.oracle.scalar import evaluate as evaluate_array

    extents = {i: evaluate(attn.index(i).extent, visit.env) for i in (attn.q, attn.k)}

    def place(name: str, env: Mapping[str, Any]) -> Any:
        axis = np.arange(tile_of(program, name))
        value = substitute(_positions(program, attn)[name], {Iota(name): _AXIS})
        return evaluate_array(value, {**env, _AXIS.name: axis}, _no_tensor)

    q = place(attn.q, visit.env)
    q = q[q < extents[attn.q]]
    if no_mask:
        return len(q) * (visit.hi - visit.lo) * tile_of(program, attn.k)
    total = 0
    for j in range(visit.lo, visit.hi):
        k = place(attn.k, {**visit.env, visit.loop.var: j})
        k = k[k < extents[attn.k]]
        env = {**visit.env, attn.q: q[:, None], attn.k: k[None, :]}
        total += int(np.broadcast_to(evaluate_array(attn.mask, env, _no_tensor), (len(q), len(k))).sum())
    return total


def _reads_tensor(e: Expr) -> bool:
    return any(isinstance(x, Fetch) for x in walk(e))


def _no_tensor(tensor: str, index: tuple[Any, ...]) -> Any:
    raise AssertionError(f"nothing here reads {tensor}")
