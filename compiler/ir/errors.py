"""What running a tile program can prove wrong.  Each error quotes the statement and the role instance it ran in."""

from __future__ import annotations


class ExecutionError(Exception):
    """Base of everything that `ir.interp.run` raises about the program (not about the call)."""


class Undefined(ExecutionError):
    """A buffer or scalar was read before anything was written to it, or an integer divided by zero."""


class OutOfBounds(ExecutionError):
    """An index outside its tensor, a stage outside its buffer, or a window outside its tile, in a live lane."""


class Race(ExecutionError):
    """Two accesses to the same elements, at least one a write, that nothing orders."""


class DoubleFill(Race):
    """A Copy overwrites a slot whose earlier copy may still be in flight, or may still be read."""


class MissingFence(Race):
    """Shared memory is used by ordinary accesses and then by the asynchronous proxy (an Mma that reads what was stored, a copy of
    the tensor memory accelerator over what was read), with no `fence async_proxy` between (PTX ISA, async proxy)."""


class OverArrival(ExecutionError):
    """An arrival that nothing orders after the phase before it: it may be counted in either, one of them too many."""


class Deadlock(ExecutionError):
    """Every role instance that is not finished waits, and nothing in flight can wake one."""


class UnfinishedAsync(ExecutionError):
    """A CTA ends with asynchronous operations that nobody waited for."""


class Abandoned(ExecutionError):
    """A CTA ends although another one of its cluster may still arrive on its barriers."""


class Changed(ExecutionError):
    """A Compute changes lanes for which its `unless` says that it does not."""


class CallError(ValueError):
    """The tensors or extents given to `run` do not fit the program's declarations."""


class Endless(ExecutionError):
    """The program is still running after more steps than any sensible one takes."""
