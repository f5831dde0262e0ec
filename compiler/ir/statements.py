"""Statements of a tile program; what they mean is written in `ir.nodes`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tilec.ir.declare import Bar, Slot
from tilec.ir.expr import Expr, Int

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
    that the Compute reads or writes.

    `unless`: in lanes where it holds, `value` is what dst has already, which every run checks; so a warp all of whose lanes it
    holds in may leave the statement out."""

    dst: Slot
    value: Expr
    during: tuple[Stmt, ...] = ()
    after: int = 0
    of: int = 0
    unless: Expr | None = None


@dataclass(frozen=True)
class Load(Stmt):
    """dst = tensor[index] where `where`, else `other`.  Lanes are those of dst's axes.  Synchronous; with a queue it goes into
    registers and completes as a Copy does.

    `box`: the tile is one box of the tensor and `where` says "inside it", or "before the end of the sequence", so one hardware
    fetch can bring it, with what lies behind that end."""

    dst: Slot
    tensor: str
    index: tuple[Expr, ...]
    where: Expr | None = None
    other: Expr = field(default_factory=lambda: Int(0))
    box: bool = False
    queue: str | None = None


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
class Move(Stmt):
    """dst = src, of one dtype, lane by lane along axes of the same names: between registers and shared memory.  With a queue it
    is asynchronous: what it reads and writes is in use until awaited (AMD: lgkmcnt)."""

    dst: Slot
    src: Slot
    queue: str | None = None


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
    """Orders this instance's earlier accesses before other units': `async_proxy` stands between ordinary writes to shared
    memory and an asynchronous Mma (or TMA) that reads them, and between ordinary reads and a TMA copy over what they read."""

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
class Interleave:
    """`times` in a row, so many instructions of each kind: `matrix`, `vector`, `special`, `lds_read`, `lds_write`,
    `global_read`."""

    times: int
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Cluster(Stmt):
    """A named stretch of the body: `compute`, `memory` in a ping-pong schedule, `prologue`, `epilogue`.

    `order`: in which order the toolchain is to issue its instructions, as far as their operands allow (LLVM:
    sched_group_barrier)."""

    kind: str
    body: tuple[Stmt, ...]
    order: tuple[Interleave, ...] = ()
