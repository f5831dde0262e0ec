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

*Asynchrony.*  `Copy`, and `Mma`, `Load` and `Move` with a queue, start an operation and go on.  Its reads and writes happen
at some time between the start and its completion.  It completes in one of two ways, and only this makes its effects visible:
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
backends print them.  `notes`, `layout`, `registers`, `warps`, `stages` of a loop, `order` of a cluster and `Priority` never
change a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from tilec.ir.expr import Expr
from tilec.ir.statements import Arrive as Arrive
from tilec.ir.statements import Await as Await
from tilec.ir.statements import Claim as Claim
from tilec.ir.statements import Cluster as Cluster
from tilec.ir.statements import Compute as Compute
from tilec.ir.statements import Copy as Copy
from tilec.ir.statements import Fence as Fence
from tilec.ir.statements import For as For
from tilec.ir.statements import If as If
from tilec.ir.statements import Interleave as Interleave
from tilec.ir.statements import Let as Let
from tilec.ir.statements import Load as Load
from tilec.ir.statements import Mma as Mma
from tilec.ir.statements import Move as Move
from tilec.ir.statements import Priority as Priority
from tilec.ir.statements import Proof as Proof
from tilec.ir.statements import Seek as Seek
from tilec.ir.statements import Segment as Segment
from tilec.ir.statements import Send as Send
from tilec.ir.statements import Stmt as Stmt
from tilec.ir.statements import Store as Store
from tilec.ir.statements import Sync as Sync
from tilec.ir.statements import Wait as Wait
from tilec.ir.statements import While as While
from tilec.ir.traverse import blocks as blocks
from tilec.ir.traverse import map_exprs as map_exprs
from tilec.ir.traverse import rewrite as rewrite
from tilec.ir.traverse import walk as walk

Unit = Literal["block", "warp", "warpgroup", "wave"]


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
    """One kernel.  `tile`: named constants; `extents`: runtime scalars; `notes`: remarks printed as comments.  `scalars`: what
    follows from those two, in order, computed once for a call, on its host."""

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
    scalars: tuple[tuple[str, Expr], ...] = ()

    def tensor(self, name: str) -> Global:
        """The tensor of that name; KeyError if there is none."""
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def with_(self, **changes: object) -> Program:
        """A copy with fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]
