"""Derives the bounds of key loops again: what `nodes.Proof` claims, on sample environments and by `arith.verdicts`.

Of every group of loops (one block, one formula, the same rows) and every sample of the program's scalars:

    a tile of a `full` loop ends before `keys`, and the mask holds for all its pairs
    no tile is walked twice
    a tile that no loop walks is empty, but for one at either end where a cluster `prologue` stands beside the loops
    (software pipelining peels it)

Samples are environments that the program could meet: extents at random, scalars that always are assigned the same value of
others computed from them, all others (claimed tiles, loop variables) at random; tables and params are increasing sequences.
Samples whose rows are empty or negative are no tiles and are passed over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilec.arith.evaluate import evaluate
from tilec.arith.formula import Normal, normalise
from tilec.arith.verdicts import verdict
from tilec.ir.axes import constant, scope_of
from tilec.ir.body import Report
from tilec.ir.expr import Expr, Fetch, free_vars, walk
from tilec.ir.nodes import Claim, Cluster, For, Let, Program, Proof, Role, Seek, Stmt, blocks
from tilec.ir.nodes import walk as walk_statements
from tilec.ir.print import show_stmt
from tilec.ir.scalars import call_scalars

SAMPLES = 24  # tiles looked at per group
TRIES = 20 * SAMPLES
TILES = 40  # key tiles of one sample at most
LIVE = ("full", "partial", "true")
UNBOUND = (KeyError, IndexError, ValueError, TypeError, ZeroDivisionError)


@dataclass
class Group:
    """Loops that cover the live keys of the same rows, with the scalars defined before them."""

    defined: tuple[Let | Seek, ...]
    peeled: bool
    loops: list[For] = field(default_factory=list)


def check_proofs(p: Program, report: Report) -> None:
    """Reports every claim that a sample refutes, once per group of loops."""
    ranks = {t.name: len(t.dims) for t in p.tensors}
    for role in p.roles:
        scope = scope_of(p, role)
        for group in groups(role):
            proof = group.loops[0].proof
            assert proof is not None
            reads = [x for x in walk(proof.formula) if isinstance(x, Fetch)]
            agreed = scope.agreed.get(proof.names[1])
            size = agreed if proof.size is None else constant(proof.size, scope.constants)
            # A mask over a tensor that lies otherwise in memory than the formula reads it is beyond these samples.
            if size is None or any(ranks.get(r.tensor) != len(r.index) for r in reads):
                continue
            with report.within(f"role {role.name}: `{show_stmt(group.loops[0])}`"):
                _check(p, role, group, proof, size, report)


def groups(role: Role) -> list[Group]:
    """Loops with proofs, grouped by block, formula and rows."""
    assigned: dict[str, set[Let | Seek | Claim]] = {}
    for s in walk_statements(role.body):
        if isinstance(s, Let | Seek | Claim):
            assigned.setdefault(s.name, set()).add(s)
    out: list[Group] = []

    def block(body: tuple[Stmt, ...], before: tuple[Let | Seek, ...]) -> tuple[Let | Seek, ...]:
        found: dict[tuple[Any, ...], Group] = {}
        peeled = any(isinstance(s, Cluster) and s.kind == "prologue" for s in body)
        for s in body:
            if isinstance(s, Let | Seek) and assigned[s.name] == {s} and not _counts(s):
                before = (*before, s)
            if isinstance(s, For) and s.proof is not None:
                key = (s.proof.formula, s.proof.rows)
                if key not in found:
                    found[key] = Group(before, peeled)
                    out.append(found[key])
                found[key].loops.append(s)
            for inner in blocks(s):
                after = block(inner, before)
                before = after if isinstance(s, Cluster) else before
        return before

    block(role.body, ())
    return out


def _counts(s: Let | Seek) -> bool:
    return isinstance(s, Let) and s.name in free_vars(s.value)


class Increasing:
    """An array of any rank and size, increasing along its last dimension."""

    def __init__(self, least: int, scale: float, index: tuple[int, ...] = ()) -> None:
        self.least, self.scale, self.index = least, scale, index

    def __getitem__(self, i: int) -> Increasing:
        return Increasing(self.least, self.scale, (*self.index, i))

    def __int__(self) -> int:
        return self.least + int(self.index[-1] * self.scale) + 7 * sum(self.index[:-1])


def samples(p: Program, role: Role, group: Group, proof: Proof) -> Iterator[dict[str, Any]]:
    """Environments in which the rows are a tile."""
    rng = random.Random(0)
    names = {v for s in group.defined for e in _exprs(s) for v in free_vars(e)}
    names |= {v for s in group.loops for e in (s.lo, s.hi, *proof.rows, proof.formula) for v in free_vars(e)}
    names -= {s.name for s in group.defined} | set(proof.names) | {n for n, _ in p.tile}
    if proof.keys is not None:
        names |= free_vars(proof.keys) - {s.name for s in group.defined} - {n for n, _ in p.tile}
    for _ in range(TRIES):
        env: dict[str, Any] = dict(p.tile)
        for name in sorted((names | set(p.extents)) - {n for n, _ in p.scalars}):
            small, large = rng.randint(1, 4), rng.randint(1, 700)
            env[name] = rng.choice((small, large, large // 64 * 64) if name in p.extents else (small - 1, large))
        env |= call_scalars(p, {n: env[n] for n in p.extents})
        for t in p.tensors:
            env[t.name] = Increasing(rng.randint(0, 500), rng.choice((1 / 400, 1 / 97, 1 / 33, 1.0, 150.0)))
        if role.var is not None:
            env[role.var] = rng.randrange(role.count)
        for s in group.defined:
            try:
                env[s.name] = evaluate(s.value, env) if isinstance(s, Let) else _seek(s, env)
            except UNBOUND:
                env.pop(s.name, None)  # it depends on what only a run knows
        try:
            first, last = (evaluate(r, env) for r in proof.rows)
        except UNBOUND:
            continue
        if 0 <= first <= last:
            yield env


def _exprs(s: Let | Seek) -> tuple[Expr, ...]:
    return (s.value,) if isinstance(s, Let) else (s.lo, s.hi, s.cond)


def _seek(s: Seek, env: Mapping[str, Any]) -> int:
    lo, hi = evaluate(s.lo, env), evaluate(s.hi, env)
    while lo < hi:
        middle = (lo + hi) // 2
        if evaluate(s.cond, {**env, s.name: middle}):
            hi = middle
        else:
            lo = middle + 1
    return lo


def _check(p: Program, role: Role, group: Group, proof: Proof, size: int, report: Report) -> None:
    normal = normalise(proof.formula, q=proof.names[0], k=proof.names[1])
    seen = 0
    for env in samples(p, role, group, proof):
        try:
            ranges = [(range(evaluate(s.lo, env), evaluate(s.hi, env)), s) for s in group.loops]
            rows = (evaluate(proof.rows[0], env), evaluate(proof.rows[1], env))
            keys = None if proof.keys is None else evaluate(proof.keys, env)
        except UNBOUND:
            continue
        if max((r.stop for r, _ in ranges), default=0) > TILES or (keys or 0) > TILES * size:
            continue
        if (wrong := _refuted(group, normal, ranges, rows, keys, size, env)) is not None:
            at = ", ".join(f"{n} = {v}" for n, v in env.items() if isinstance(v, int) and n in p.extents)
            report(f"{wrong}, rows {rows[0]} … {rows[1]} ({at})")
            return
        seen += 1
        if seen == SAMPLES:
            return


def _refuted(
    group: Group,
    normal: Normal,
    ranges: list[tuple[range, For]],
    rows: tuple[int, int],
    keys: int | None,
    size: int,
    env: Mapping[str, Any],
) -> str | None:
    """What is wrong with the loops in this environment."""
    walked: dict[int, For] = {}
    for numbers, s in ranges:
        for j in numbers:
            if j in walked:
                return f"tile {j} is walked twice"
            if j < 0:
                return f"tile {j} is before the first key"
            walked[j] = s
    for j, s in walked.items():
        full = s.proof is not None and s.proof.segment == "full"
        if full and keys is not None and (j + 1) * size > keys:
            return f"tile {j} is walked as full, but reaches past the last key, {keys - 1}"
        if full and _state(normal, rows, j * size, (j + 1) * size, env) in ("empty", "partial"):
            return f"tile {j} is walked as full, but the mask is false in it"
    if keys is None:
        return None
    missed = [
        j
        for j in range(-(-keys // size))
        if j not in walked and _state(normal, rows, j * size, min((j + 1) * size, keys), env) in LIVE
    ]
    at_an_end = len(missed) == 1 and not (walked and min(walked) < missed[0] < max(walked))
    if group.peeled and at_an_end:
        return None
    return f"tile {missed[0]} is not walked, but the mask is true in it" if missed else None


def _state(normal: Normal, rows: tuple[int, int], lo: int, hi: int, env: Mapping[str, Any]) -> str:
    """The mask in a tile; where the prover cannot say, on a grid of its pairs: `true` there is not yet full."""
    try:
        found = verdict(normal, (*rows, lo, hi - 1), env)
    except UNBOUND:
        found = "unknown"
    if found != "unknown":
        return found
    q_step, k_step = max(1, (rows[1] - rows[0]) // 7), max(1, (hi - 1 - lo) // 7)
    pairs = [(q, k) for q in (*range(rows[0], rows[1] + 1, q_step), rows[1]) for k in (*range(lo, hi, k_step), hi - 1)]
    try:
        values = {bool(evaluate(normal.mask, {**env, normal.q: q, normal.k: k})) for q, k in pairs}
    except UNBOUND:
        return "unknown"
    return "partial" if len(values) == 2 else "true" if values == {True} else "empty"
