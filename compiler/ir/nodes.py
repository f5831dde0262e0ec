"""The tile program: loops, roles, buffers and tile operations, with every scheduling decision as a value.

## Meaning

A program runs `grid.ctas` thread blocks (CTAs; workgroups on AMD).  `cta` numbers them.  The work is `grid.tiles`
tiles; what a CTA does with its number is written out in the body as `let` lines, so a block map is ordinary arithmetic.
Each CTA runs every instance of every role concurrently: role `consumer : warpgroup x2 as wg`
is two threads of control with wg = 0, 1.  A program with one role of one instance is a plain sequential program.

*Values.*  A buffer holds a tile: a dense array over named axes, of one dtype, once per stage.  Register buffers are private to a
role instance; shared buffers belong to the CTA.  Integers are unbounded; f32 arithmetic rounds to nearest even; a store to
a bf16, f16 or fp8 buffer rounds once.  Expressions broadcast over axes by name (see `ir.expr`).  A buffer starts undefined:
reading what was never written is an error, as is reading or overwriting what an asynchronous operation still uses.

*Lanes.*  In one statement every axis has one number of lanes: a slot with a window gives (or takes) the lanes `start` …
`start + size` of its buffer, any other slot and every `Read` all of the buffer's.  `iota(axis)` counts the lanes of the
statement, from 0, wherever a window starts; so splitting rows over instances replaces `iota(q)` by `64 * wg + iota(q)`.

*Accumulation.*  `Mma` contracts the axes that both operands have and the destination has not; products of the operands' rounded
values are summed in f32 in an order the program does not fix.

*Asynchrony.*  `Copy` and `Mma(queue=…)` start an operation and go on.  Its reads and writes happen at some time between
the start and its completion.  It completes in one of two ways, and only this makes its effects visible:
  - `Copy(signal=bar)`: it arrives once on that barrier when done (TMA with a transaction count);
  - `queue="name"`: the role instance waits with `Await(queue, pending=n)`: all but the n youngest operations of this
    instance's queue are then complete (wgmma groups, cp.async groups, AMD's vmcnt and lgkmcnt).

*Clusters.*  The `grid.cluster` CTAs of a cluster have each their own shared buffers and barriers, of the same names.  What a
CTA does is for its own, but for three statements: a `Copy(multicast)` fills the same slot of every CTA and arrives on the
same barrier of each, a `Send` does so with one scalar, and an `Arrive` may be on the barrier of another CTA or of all.  A CTA's
shared memory ends with its last instance: whatever others do to it must be known to one of its instances by then.

*Barriers.*  `mbarrier`: counts `arrivals`, then flips its phase.  `Wait(parity=p)` passes when the phase of parity p has
completed: with the phase number starting at 0, it blocks while `phase % 2 == p`.  So a consumer starts with parity 0, and a
producer's first pass over empty slots with parity 1.  `named` (bar.sync, s_barrier): `Sync` arrives and blocks until
`arrivals` participants have come; `Arrive` only counts.  One barrier of `stages` n is n independent barriers.  Every arrival
must be ordered after the completion of the phase before, else it might be counted there.

*Order.*  Two accesses to the same shared element (or an asynchronous one to a register tile), at least one a write, must
be ordered by program order, barriers or `Await`.  `ir.interp` checks this with vector clocks on every run,
so a missing arrive, a swapped parity and an early release are found even where the interleaving that ran was harmless.

*Edges.*  A lane of `Load` or `Copy` whose `where` is false reads nothing and gives `other`; a lane of `Store` whose `where`
is false writes nothing.  Index expressions are in elements, per dimension of the tensor; strides belong to the call.  An
index outside the tensor in a lane that is not masked off is an error, of a `Fetch` inside the index as well.  A `Fetch` in
any other statement is read in every lane: a guarded read is a Load.  `where`, `and` and `or` on a scalar condition are
lazy, as in C.

*Division of labour.*  Passes write programs; `ir.verify` says which are well formed; `ir.interp` runs them at every level;
backends print them.  `notes`, `layout`, `registers`, `warps`, `stages` of a loop and `Priority` never change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tilec.ir.declare import Axis as Axis
from tilec.ir.declare import Bar as Bar
from tilec.ir.declare import Barrier as Barrier
from tilec.ir.declare import Buffer as Buffer
from tilec.ir.declare import Global as Global
from tilec.ir.declare import Grid as Grid
from tilec.ir.declare import Layout as Layout
from tilec.ir.declare import Slot as Slot
from tilec.ir.declare import Space as Space
from tilec.ir.declare import Window as Window
from tilec.ir.expr import Expr, Int

Unit = Literal["block", "warp", "warpgroup", "wave"]
Segment = Literal["all", "left", "full", "right"]


class Stmt:
    """Base of all statements."""

    __slots__ = ()


@dataclass(frozen=True)
class Let(Stmt):
    """Defines or reassigns a scalar of this role instance."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Seek(Stmt):
    """name = the least v in lo … hi for which `cond` (over `name`) holds, else hi; `cond` must be monotone in `name`.
    Found by bisection: how a tile finds its sequence in packed storage, or a document's first key."""

    name: str
    lo: Expr
    hi: Expr
    cond: Expr


@dataclass(frozen=True)
class Compute(Stmt):
    """dst = value, element by element, with reductions.  `during`: statements that stand in the middle of it, after
    `after` of `of` element groups (where `wgmma.wait_group` lands in the exponentials is worth 10 %); they write nothing
    that the Compute reads or writes."""

    dst: Slot
    value: Expr
    during: tuple[Stmt, ...] = ()
    after: int = 0
    of: int = 0


@dataclass(frozen=True)
class Load(Stmt):
    """dst = tensor[index] where `where`, else `other`; synchronous.  Lanes are those of dst's axes.

    `box`: the tile is one box of the tensor and `where` says "inside it", or "before the end of the sequence", so one hardware
    fetch can bring it, with what lies behind that end."""

    dst: Slot
    tensor: str
    index: tuple[Expr, ...]
    where: Expr | None = None
    other: Expr = field(default_factory=lambda: Int(0))
    box: bool = False


@dataclass(frozen=True)
class Store(Stmt):
    """tensor[index] = value where `where`, rounded to the tensor's dtype.  `axes`: the lanes."""

    tensor: str
    index: tuple[Expr, ...]
    value: Expr
    axes: tuple[str, ...]
    where: Expr | None = None


@dataclass(frozen=True)
class Mma(Stmt):
    """dst = a . b, or dst += a . b.  With a queue it is asynchronous."""

    dst: Slot
    a: Slot
    b: Slot
    accumulate: bool = False
    queue: str | None = None


@dataclass(frozen=True)
class Copy(Stmt):
    """Asynchronous Load into shared memory (TMA, cp.async, LDS-DMA).  Exactly one of `signal`, `queue`.

    `multicast`: into that slot of every CTA of the cluster, with an arrival on `signal` of each."""

    dst: Slot
    tensor: str
    index: tuple[Expr, ...]
    where: Expr | None = None
    signal: Bar | None = None
    queue: str | None = None
    multicast: bool = False


@dataclass(frozen=True)
class Send(Stmt):
    """Asynchronous store of a scalar into that slot of every CTA of the cluster, with an arrival on `signal` of each.
    (PTX: st.async.)"""

    dst: Slot
    value: Expr
    signal: Bar


@dataclass(frozen=True)
class Await(Stmt):
    """Waits until at most `pending` operations of this role instance's queue are in flight."""

    queue: str
    pending: int = 0


@dataclass(frozen=True)
class Wait(Stmt):
    """Waits on an mbarrier for the phase of this parity."""

    bar: Bar
    parity: Expr


@dataclass(frozen=True)
class Arrive(Stmt):
    """One arrival, without waiting: on this CTA's barrier, on that of CTA number `at` of the cluster, or `everywhere` in it."""

    bar: Bar
    at: Expr | None = None
    everywhere: bool = False


@dataclass(frozen=True)
class Sync(Stmt):
    """Arrival on a named barrier, and wait for the others."""

    bar: Bar


@dataclass(frozen=True)
class Claim(Stmt):
    """name = the next unclaimed number of a global counter (atomic add of one; the counter starts at the number of clusters)."""

    name: str
    counter: str


@dataclass(frozen=True)
class Priority(Stmt):
    """Issue priority of this wave from here on (s_setprio)."""

    level: int


@dataclass(frozen=True)
class Fence(Stmt):
    """Orders this instance's earlier writes before other units' reads: `async_proxy` stands between ordinary writes to
    shared memory and an asynchronous Mma (or TMA) that reads them."""

    kind: str


@dataclass(frozen=True)
class If(Stmt):
    cond: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Proof:
    """Why a k loop may treat its tiles as it does.

    Of the mask `formula` (over the variables `names`; residue order already applied), the query rows `rows` = [first, last]
    and the keys 0 … `keys` (expressions of the program) in tiles of `size`, segment number `part` of the live keys is covered
    here: `full` tiles need neither mask nor tail guard, `left` and `right` apply both, `all` is an unsplit loop.  Loops of
    one block with one formula and rows cover all live keys together.  `because` is the constraint, for a reader."""

    formula: Expr
    rows: tuple[Expr, Expr]
    segment: Segment
    part: int
    because: str
    keys: Expr | None = None  # None: not stated, and coverage is not checked
    size: Expr | None = None  # None: that of the key axis, on which all buffers must agree
    names: tuple[str, str] = ("q", "k")


@dataclass(frozen=True)
class For(Stmt):
    """for var in lo … hi (exclusive), or downwards from hi - 1 to lo when `down`.  `stages`: software pipelining left to the
    toolchain (Triton)."""

    var: str
    lo: Expr
    hi: Expr
    body: tuple[Stmt, ...]
    proof: Proof | None = None
    stages: int | None = None
    down: bool = False


@dataclass(frozen=True)
class While(Stmt):
    cond: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Cluster(Stmt):
    """A named stretch of the body: `compute`, `memory` in a ping-pong schedule, `prologue`, `epilogue`."""

    kind: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Role:
    """`count` instances of a unit, each bound to its number in `var`.  `registers`: per thread, after setmaxnreg."""

    name: str
    unit: Unit
    count: int
    body: tuple[Stmt, ...]
    var: str | None = None
    warps: int | None = None  # of a `block` role
    registers: int | None = None
    buffers: tuple[Buffer, ...] = ()  # register buffers, private to each instance


@dataclass(frozen=True)
class Program:
    """One kernel.  `tile`: named constants; `extents`: runtime scalars; `notes`: remarks printed as comments."""

    name: str
    target: str
    tile: tuple[tuple[str, int], ...]
    extents: tuple[str, ...]
    tensors: tuple[Global, ...]
    grid: Grid
    buffers: tuple[Buffer, ...]  # shared
    barriers: tuple[Barrier, ...]
    roles: tuple[Role, ...]
    notes: tuple[str, ...] = ()

    def tensor(self, name: str) -> Global:
        """The tensor of that name; KeyError if there is none."""
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def with_(self, **changes: object) -> Program:
        """A copy with fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]


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
            return replace(s, dst=slot(s.dst), value=f(s.value))
        case Load():
            return replace(s, dst=slot(s.dst), index=tuple(map(f, s.index)), where=maybe(s.where), other=f(s.other))
        case Store():
            return replace(s, index=tuple(map(f, s.index)), value=f(s.value), where=maybe(s.where))
        case Mma():
            return replace(s, dst=slot(s.dst), a=slot(s.a), b=slot(s.b))
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
