"""causal_gqa, forward, for sm90.

tile    TQ = 128, TK = 128, TD = 128
blocks  (M + (TQ - 1)) // TQ * 32 * B, order longest_first
tiles by spec
"""

import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    """a // b rounded towards minus infinity (Triton's `//` truncates)."""
    return a // b - ((a % b != 0) & ((a < 0) != (b < 0)))


@triton.jit
def causal_gqa_forward(
    Q_ptr, K_box, V_box, O_ptr, L_ptr,
    Q_s0, Q_s1, Q_s2, O_s0, O_s1, O_s2, L_s0, L_s1, L_s2,
    B, M, N,
    TQ: tl.constexpr, TK: tl.constexpr, TD: tl.constexpr,
):
    cta = tl.program_id(0)
    lane_q = tl.arange(0, TQ)
    lane_k = tl.arange(0, TK)
    lane_d = tl.arange(0, TD)
    # map: tile coordinates, longest_first
    m_tiles = tl.cdiv(M, TQ)
    heads = 32 * B
    section = tl.maximum(1, tl.minimum(heads, 245760 // tl.maximum(1, N)))
    section_first = cta // (m_tiles * section) * section
    width = tl.minimum(section, heads - section_first)
    inside = cta % (m_tiles * section)
    m = m_tiles - 1 - inside // width
    head = section_first + inside % width
    h = head % 32
    b = head // 32
    q_first = m * TQ
    q_last = tl.minimum(q_first + TQ, M) - 1
    q = q_first + lane_q
    Q_base = Q_ptr + tl.cast(b, tl.int64) * Q_s0 + tl.cast(h, tl.int64) * Q_s2
    Q_tile = tl.load(
        Q_base + (q.to(tl.int64) * Q_s1)[:, None] + lane_d[None, :],
        mask=(q < M)[:, None],
        other=0.0,
    )
    row_max = tl.full([TQ], float("-inf"), tl.float32)
    end = tl.maximum(0, floor_div(q_last + N - M + TK, TK))
    edge = tl.maximum(0, floor_div(q_first + 1 + N - M, TK))
    row_sum = tl.full([TQ], 0.0, tl.float32)
    acc = tl.full([TQ, TD], 0.0, tl.float32)
    # keys
    # full (no mask): k <= q + N - M  =>  k < q_last + 1 + N - M
    for j in tl.range(0, edge, num_stages=2):
        K_tile = K_box.load([b, j * TK, h // 4, 0]).reshape([TK, TD])
        scores = tl.dot(Q_tile, tl.trans(K_tile))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        shrink = tl.exp2((row_max - new_max) * 0.12751743082459868)
        weights = tl.exp2(scores * 0.12751743082459868 - (new_max * 0.12751743082459868)[:, None])
        row_sum = row_sum * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        row_max = new_max
        rounded = weights.to(tl.bfloat16)
        V_tile = V_box.load([b, j * TK, h // 4, 0]).reshape([TK, TD])
        acc = tl.dot(rounded, V_tile, acc)
    # right (masked): k <= q + N - M  =>  k < q_last + 1 + N - M
    for j in tl.range(edge, end, num_stages=2):
        k = j * TK + lane_k
        K_tile = K_box.load([b, j * TK, h // 4, 0]).reshape([TK, TD])
        scores = tl.dot(Q_tile, tl.trans(K_tile))
        scores = tl.where((k[None, :] <= (q + N - M)[:, None]) & (k < N)[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        shrink = tl.exp2((row_max - base) * 0.12751743082459868)
        weights = tl.exp2(scores * 0.12751743082459868 - (base * 0.12751743082459868)[:, None])
        row_sum = row_sum * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        row_max = new_max
        rounded = weights.to(tl.bfloat16)
        V_tile = V_box.load([b, j * TK, h // 4, 0]).reshape([TK, TD])
        acc = tl.dot(rounded, V_tile, acc)
    row_max = row_max * 0.08838834764831843
    # finish
    O_base = O_ptr + tl.cast(b, tl.int64) * O_s0 + tl.cast(h, tl.int64) * O_s2
    tl.store(
        O_base + (q.to(tl.int64) * O_s1)[:, None] + lane_d[None, :],
        (acc * tl.where(row_sum == 0.0, 0.0, 1.0 / row_sum)[:, None]).to(tl.bfloat16),
        mask=(q < M)[:, None],
    )
    L_base = L_ptr + tl.cast(b, tl.int64) * L_s0 + tl.cast(h, tl.int64) * L_s1
    tl.store(L_base + q.to(tl.int64) * L_s2, row_max + tl.log(row_sum), mask=q < M)
