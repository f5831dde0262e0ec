"""Seed and offset of one call's dropout: the caller's pair on the device, the caller's numbers, or a draw of the generator."""

from __future__ import annotations

from operator import index
from typing import Any

import torch
from torch import Tensor

from tilec.backends.runtime.capture import refuse
from tilec.backends.runtime.signature import Signature
from tilec.dsl.faults import CallFault

LIMIT = 2**63


def unseeded(signature: Signature, seed: Any, offset: Any) -> None:
    """Raises CallFault E1026 for a seed or an offset that a kernel without dropout was given."""
    if seed is not None or offset != 0:
        given = "a seed" if seed is not None else "an offset"
        raise CallFault("E1026", f"`{signature.kernel}` has no dropout, and this call gave {given}")


def pair(signature: Signature, device: torch.device, rng: Any, seed: Any, offset: Any) -> Tensor:
    """The i64 pair on `device`.  `rng` is the caller's own, None without one; without a seed the generator draws.

    Raises CallFault E1026 for what is no such pair or number, E1027 in a captured graph for numbers, which it would not hold."""
    if rng is None:
        return _drawn(signature, device, seed, offset)
    name = signature.dropout
    if seed is not None:
        raise CallFault("E1026", f"this call of `{signature.kernel}` gave both `{name}` and a seed: one says it all")
    found = f"{rng.dtype}{list(rng.shape)} on {rng.device}" if isinstance(rng, Tensor) else type(rng).__name__
    if found != f"torch.int64[2] on {device}":
        message = f"`{name}` is dropout's seed and offset, torch.int64[2] on {device}; this call gave {found}"
        raise CallFault("E1026", message)
    return rng.contiguous()


def _drawn(signature: Signature, device: torch.device, seed: Any, offset: Any) -> Tensor:
    if seed is not None:
        seed = _number("seed", seed)
    offset = _number("offset", offset)
    if seed is not None:
        hint = f"pass both on the device: {signature.dropout}=torch.tensor([seed, offset], device=…)"
        refuse(device, signature.kernel, "its seed is a number of the host", hint)
        return torch.tensor([seed, offset], dtype=torch.int64, device=device)
    drawn = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)
    drawn[1:].fill_(offset)
    return drawn


def _number(what: str, value: Any) -> int:
    """`value` as an int.  Raises CallFault E1026 for what is none of 64 bits."""
    try:
        found = value if isinstance(value, int) else index(value)
    except TypeError:
        found = LIMIT
    if not -LIMIT <= found < LIMIT:
        raise CallFault("E1026", f"dropout's {what} is an i64 number; this call gave {value!r}")
    return found
