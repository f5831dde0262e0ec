"""Attention in float64 on the GPU: what device tests compare kernels with."""

import torch


def causal(m, n, window=None):
    """Live positions (m, n) where queries end with the keys; of the last `window` keys only."""
    rows, keys = torch.arange(m, device="cuda")[:, None] + n - m, torch.arange(n, device="cuda")
    live = keys <= rows
    return live if window is None else live & (keys > rows - window)


def attention(q, k, v, live=None):
    """O (b, m, h, e) and L (b, h, m) of q (b, m, h, d), k (b, n, heads of keys, d) and v (b, n, heads of keys, e): the queries of
    one key head at a time.  `live` (m, n): None for all.  Rows without a live position: O = 0, L = -inf."""
    group, outputs, sums = q.shape[2] // k.shape[2], [], []
    for h in range(k.shape[2]):
        mine = q[:, :, h * group : (h + 1) * group].double()
        scores = torch.einsum("bqhd,bkd->bhqk", mine, k[:, :, h].double()) * q.shape[-1] ** -0.5
        if live is not None:
            scores.masked_fill_(~live, -torch.inf)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0.0)[..., None])
        outputs.append(torch.einsum("bhqk,bke->bqhe", weights, v[:, :, h].double()))
        sums.append(lse)
    return torch.cat(outputs, 2), torch.cat(sums, 1)
