"""Dense attention in torch float64, written from the definition and apart from the oracle it checks."""

from __future__ import annotations

import numpy as np
import torch


def leaf(array) -> torch.Tensor:
    """A float64 leaf with a gradient."""
    return torch.from_numpy(np.asarray(array).astype(np.float64)).requires_grad_()


def dense(logits, live, value, *, sink=None, keep=1.0):
    """O and L from logits [..., M, N], live [M, N] or broadcastable, value [..., N, E], sink [..., 1]; torch all through."""
    live = live.expand(logits.shape)
    dead = ~live.any(-1, keepdim=True)
    s = torch.where(live, logits, -torch.inf)
    s = torch.where(dead, 0.0, s)
    if sink is not None:
        s = torch.cat([s, sink.expand(*s.shape[:-1], 1)], -1)
    lse = torch.logsumexp(s, -1, keepdim=True)
    p = torch.where(live, torch.exp(s[..., : live.shape[-1]] - lse), 0.0)
    out = torch.where(dead, 0.0, (p * keep) @ value)
    return out, torch.where(dead, -torch.inf, lse)[..., 0]


def heads_first(x: torch.Tensor, group: int = 1) -> torch.Tensor:
    """[B, S, H, D] to [B, H * group, S, D]."""
    return x.transpose(1, 2).repeat_interleave(group, 1)


def bottom_right(m: int, n: int) -> torch.Tensor:
    return torch.arange(n)[None, :] <= torch.arange(m)[:, None] + n - m


def f64(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy()
