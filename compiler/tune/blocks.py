"""Which tiles each block of a program takes, for all blocks at once: the statements of its block map over arrays.

What is simulated is thus what is printed.  `plain` is a program of nothing but a block map, for maps without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.expr import Expr, Fetch, Var, walk
from tilec.ir.nodes import Cluster, If, Let, Program, Role, Stmt, While
from tilec.oracle.scalar import evaluate
from tilec.passes.block_order import Coords
from tilec.passes.lower_attention import grid_of, map_lets
from tilec.passes.map_blocks import BlockMap, map_blocks

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Taken:
    """The tile that is the n-th of all: `block[n]` takes it, at coordinates `at[name][n]`.  By block, and in the order in which
    the block takes them."""

    ctas: int
    block: Ints
    at: Mapping[str, Ints]


def taken(program: Program, extents: Mapping[str, int]) -> Taken:
    """All tiles.  `extents`: every scalar that the grid and the map mention.  KeyError for one that lacks; ValueError for a map
    that reads tensors."""
    names = [n for n, _ in program.grid.coords]
    known: dict[str, Any] = {**extents, **dict(program.tile)}
    ctas = int(evaluate(program.grid.ctas, known, _no_tensor))
    run = _Run(names, program.grid.coords[0][0])
    if ctas > 0:
        run.body(program.roles[0].body, {**known, "cta": np.arange(ctas)}, np.arange(ctas))
    block = np.concatenate([b for b, _ in run.found]) if run.found else np.zeros(0, np.int64)
    order = np.argsort(block, kind="stable")
    at = {n: np.concatenate([c[n] for _, c in run.found])[order] if run.found else block for n in names}
    return Taken(ctas, block[order], at)


def plain(block_map: BlockMap) -> Program:
    """A program of R row tiles of each of H heads under that map."""
    coords: Coords = (("row", Var("R")), ("head", Var("H")))
    role = Role("main", "block", 1, (Cluster("map", map_lets(coords, Var("cta"))),))
    return map_blocks(Program("map", "map", (), ("R", "H"), (), grid_of(coords), (), (), (role,)), block_map)


class _Run:
    """`found`: blocks and coordinates, each time that a map has given the first coordinate."""

    def __init__(self, names: list[str], row: str) -> None:
        self.names, self.row = names, row
        self.found: list[tuple[Ints, dict[str, Ints]]] = []

    def body(self, body: tuple[Stmt, ...], scope: dict[str, Any], blocks: Ints) -> None:
        """Runs lines that the map may depend on; lines whose values only a kernel knows are passed over."""
        for s in body:
            match s:
                case Let(name, value):
                    if all(isinstance(x, Var) and x.name in scope for x in walk(value) if isinstance(x, Var | Fetch)):
                        scope[name] = _value(value, scope)
                case Cluster("map", lines):
                    self.body(lines, scope, blocks)
                    if any(isinstance(x, Let) and x.name == self.row for x in lines):
                        self.found.append((blocks, {n: np.broadcast_to(scope[n], blocks.shape) for n in self.names}))
                case Cluster(_, lines) | If(_, lines, _):
                    self.body(lines, scope, blocks)
                case While(cond, lines):
                    self.loop(cond, lines, scope, blocks)

    def loop(self, cond: Expr, lines: tuple[Stmt, ...], scope: dict[str, Any], blocks: Ints) -> None:
        while True:
            goes = np.broadcast_to(_value(cond, scope), blocks.shape)
            if not goes.any():
                return
            scope = {n: v[goes] if np.shape(v) == blocks.shape else v for n, v in scope.items()}
            blocks = blocks[goes]
            self.body(lines, scope, blocks)


def _value(e: Expr, scope: Mapping[str, Any]) -> Any:
    return evaluate(e, scope, _no_tensor)


def _no_tensor(tensor: str, index: tuple[Any, ...]) -> Any:
    raise ValueError(f"the block map reads {tensor}")
