"""Walks over nested statements, and rewriting of statements and of the expressions in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilec.ir.declare import Bar, Slot, Window
from tilec.ir.expr import Expr
from tilec.ir.statements import (
    Arrive,
    Cluster,
    Compute,
    Copy,
    For,
    If,
    Let,
    Load,
    Mma,
    Move,
    Seek,
    Send,
    Stmt,
    Store,
    Sync,
    Wait,
    While,
)


def blocks(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """Nested statement lists."""
    match s:
        case For() | While() | Cluster():
            return (s.body,)
        case If():
            return (s.then, s.orelse)
        case Compute() if s.during:
            return (s.during,)
        case _:
            return ()


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, parents first."""
    for s in body:
        yield s
        for b in blocks(s):
            yield from walk(b)


def rewrite(body: tuple[Stmt, ...], rule: Callable[[Stmt], tuple[Stmt, ...] | None]) -> tuple[Stmt, ...]:
    """Bottom-up rewriting of statements: after its nested lists, each is replaced by `rule(s)` unless that is None."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case For() | While() | Cluster():
                s = replace(s, body=rewrite(s.body, rule))
            case If():
                s = replace(s, then=rewrite(s.then, rule), orelse=rewrite(s.orelse, rule))
            case Compute() if s.during:
                s = replace(s, during=rewrite(s.during, rule))
            case _:
                ...
        new = rule(s)
        out += (s,) if new is None else new
    return tuple(out)


def map_exprs(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """`s` with `f` applied to every expression directly in it (nested statements are left alone)."""

    def slot(x: Slot) -> Slot:
        return Slot(
            x.buffer,
            None if x.stage is None else f(x.stage),
            tuple(Window(w.axis, f(w.start), f(w.size)) for w in x.windows),
        )

    def maybe(x: Expr | None) -> Expr | None:
        return None if x is None else f(x)

    def bar(x: Bar) -> Bar:
        return Bar(x.name, f(x.stage))

    match s:
        case Let(name, value):
            return Let(name, f(value))
        case Seek(name, lo, hi, cond):
            return Seek(name, f(lo), f(hi), f(cond))
        case Compute():
            return replace(s, dst=slot(s.dst), value=f(s.value), unless=maybe(s.unless))
        case Load():
            return replace(s, dst=slot(s.dst), index=tuple(map(f, s.index)), where=maybe(s.where), other=f(s.other))
        case Store():
            return replace(s, index=tuple(map(f, s.index)), value=f(s.value), where=maybe(s.where))
        case Mma():
            return replace(s, dst=slot(s.dst), a=slot(s.a), b=slot(s.b))
        case Move():
            return replace(s, dst=slot(s.dst), src=slot(s.src))
        case Copy():
            return replace(
                s,
                dst=slot(s.dst),
                index=tuple(map(f, s.index)),
                where=maybe(s.where),
                signal=None if s.signal is None else bar(s.signal),
            )
        case Send():
            return Send(slot(s.dst), f(s.value), bar(s.signal))
        case Wait():
            return replace(s, bar=bar(s.bar), parity=f(s.parity))
        case Arrive():
            return replace(s, bar=bar(s.bar), at=maybe(s.at))
        case Sync():
            return replace(s, bar=bar(s.bar))
        case If():
            return replace(s, cond=f(s.cond))
        case While():
            return replace(s, cond=f(s.cond))
        case For():
            proof = s.proof
            if proof is not None:
                proof = replace(proof, rows=(f(proof.rows[0]), f(proof.rows[1])), keys=maybe(proof.keys))
            return replace(s, lo=f(s.lo), hi=f(s.hi), proof=proof)
        case _:
            return s
