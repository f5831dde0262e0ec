"""Loops of machine code: natural loops of the flow graph, so that where blocks lie in memory does not matter.

An assembler moves the retry of a wait behind the function and jumps back: a backward branch alone is no loop.  An edge to a
block that dominates its start is one (A. Aho, M. Lam, R. Sethi, J. Ullman, "Compilers", 9.6).  Code that only calls reach is in
no loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilec.targets.inspect.sass import Function, Instruction

JUMPS = ("BRA", "JMP")
ENDS = ("EXIT", "RET", "BRX", "JMX", "KILL")
UNIFORM = ("BRA.U.ANY",)  # once for each value that the lanes hold of what must be uniform: no loop of the program


@dataclass(frozen=True)
class Block:
    """Instructions first … last - 1 of a function, entered at the first and left at the last; `next`: blocks by number."""

    first: int
    last: int
    next: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """`blocks` by number, in the order of their addresses; `inner`: blocks of the loops inside it."""

    function: Function
    parts: tuple[Block, ...]
    blocks: frozenset[int]
    inner: frozenset[int]

    def instructions(self) -> Iterator[Instruction]:
        """All of them, in the order of their addresses."""
        return self._of(self.blocks)

    def step(self) -> tuple[Instruction, ...]:
        """What a pass executes where no wait is tried again: without loops inside, and without blocks that only jump."""
        own = {n for n in self.blocks - self.inner if self.parts[n].last - self.parts[n].first > 1}
        return tuple(self._of(own))

    def _of(self, numbers: frozenset[int] | set[int]) -> Iterator[Instruction]:
        for n in sorted(numbers):
            yield from self.function.instructions[self.parts[n].first : self.parts[n].last]


def blocks_of(f: Function) -> tuple[Block, ...]:
    """The flow graph: blocks in the order of their addresses."""
    starts = {0, *f.labels.values()}
    starts |= {n + 1 for n, i in enumerate(f.instructions) if i.opcode in (*JUMPS, *ENDS)}
    order = sorted(n for n in starts if n < len(f.instructions))
    number = {start: n for n, start in enumerate(order)}
    out = []
    for n, start in enumerate(order):
        end = order[n + 1] if n + 1 < len(order) else len(f.instructions)
        last = f.instructions[end - 1]
        following = [number[f.labels[last.target]]] if last.opcode in JUMPS and last.target in f.labels else []
        if _goes_on(last) and end in number:
            following.append(number[end])
        out.append(Block(start, end, tuple(dict.fromkeys(following))))
    return tuple(out)


def loops(f: Function) -> tuple[Loop, ...]:
    """The natural loops of a function, in the order of their headers; those with one header are one loop."""
    parts = blocks_of(f)
    dominators = _dominators(parts)
    before: dict[int, set[int]] = {n: set() for n in range(len(parts))}
    bodies: dict[int, set[int]] = {}
    for n, b in enumerate(parts):
        for m in b.next:
            before[m].add(n)
    for n, b in enumerate(parts):
        for header in b.next:
            if header in dominators.get(n, ()) and not f.instructions[b.last - 1].is_(*UNIFORM):
                body, todo = bodies.setdefault(header, {header}), [n]
                while todo:
                    at = todo.pop()
                    if at not in body:
                        body.add(at)
                        todo += before[at] & dominators.keys()
    inner = {h: {x for g, o in bodies.items() if g != h and o < body for x in o} for h, body in bodies.items()}
    return tuple(Loop(f, parts, frozenset(bodies[h]), frozenset(inner[h])) for h in sorted(bodies))


def innermost(found: tuple[Loop, ...], *names: str) -> tuple[Loop, ...]:
    """Loops with an instruction of such a name, without those around them."""
    having = [x for x in found if any(i.is_(*names) for i in x.instructions())]
    return tuple(x for x in having if not any(y.blocks < x.blocks for y in having))


def _goes_on(i: Instruction) -> bool:
    """Whether the next instruction may follow: not after a jump of all threads, without a predicate in front or as operand."""
    conditional = i.predicate is not None or (i.opcode in JUMPS and len(i.operands) > 1)
    return conditional or i.opcode not in (*JUMPS, *ENDS)


def _dominators(parts: tuple[Block, ...]) -> dict[int, set[int]]:
    """For each block that the first one reaches, the blocks that every way to it passes."""
    order, seen, todo = list[int](), {0}, [0]
    while todo:
        at = todo.pop()
        order.append(at)
        todo += [n for n in parts[at].next if n not in seen]
        seen |= set(parts[at].next)
    before: dict[int, list[int]] = {n: [] for n in order}
    for n in order:
        for m in parts[n].next:
            before[m].append(n)
    found = {n: set(order) for n in order}
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for n in order[1:]:
            new = set.intersection(*(found[m] for m in before[n])) | {n}
            if new != found[n]:
                found[n], changed = new, True
    return found
