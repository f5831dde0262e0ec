"""Attentions for the oracle's tests, built by hand."""

from __future__ import annotations

from tilec.ir.attention import Attention, Dropout, Gradient, Index, Storage, Tensor
from tilec.ir.expr import TRUE, Expr, Fetch, Float, Int, Op, Var

b, h, q, k, d, e, M, N = (Var(n) for n in ("b", "h", "q", "k", "d", "e", "M", "N"))
s = Var("s")
DENSE = Storage()
BOTTOM_RIGHT = Op("<=", (k, Op("-", (Op("+", (q, N)), M))))


def op(name: str, *args: Expr | int | float) -> Expr:
    return Op(name, tuple(a if isinstance(a, Expr) else Float(a) if isinstance(a, float) else Int(a) for a in args))


def fetch(tensor: str, *index: Expr) -> Fetch:
    return Fetch(tensor, index)


def attention(
    *,
    heads: int = 4,
    group: int = 1,
    depth: int = 16,
    features: int | None = None,
    dtype: str = "bf16",
    out: str | None = None,
    q_storage: Storage = DENSE,
    k_storage: Storage = DENSE,
    mask: Expr = TRUE,
    scores: tuple[Expr, ...] = (),
    params: tuple[Tensor, ...] = (),
    sink: bool = False,
    grad: tuple[str, ...] = (),
    paged: int | None = None,
    scaled: bool = False,
    dropout: float | None = None,
    scale: Expr | None = None,
    order: str = "bqhd",
) -> Attention:
    """Multi-head attention with Q[b, q, h, d], K and V[b, k, h // group, ·]; `order` permutes every tensor's dimensions."""
    feature = d if features is None else e
    kv = op("//", h, group) if group > 1 else h
    dims = {"b": b, "h": h, "d": d}

    def index(rows: Expr, head: Expr, last: Expr) -> tuple[Expr, ...]:
        at = {**dims, "q": rows, "h": head, "d": last}
        return tuple(at[c] for c in order)

    page = None if paged is None else fetch("bt", b, op("//", k, paged))
    scales = {n: fetch(n, b, head) if scaled else None for n, head in (("qs", h), ("ks", kv), ("vs", kv))}
    tensors = [
        Tensor("Q", "query", index(q, h, d), dtype, scales["qs"]),
        Tensor("K", "key", index(k, kv, d), dtype, scales["ks"], page),
        Tensor("V", "value", index(k, kv, feature), dtype, scales["vs"], page),
        Tensor("O", "output", index(q, h, feature), out or dtype),
        Tensor("L", "lse", (b, h, q), "f32"),
        *params,
    ]
    if sink:
        tensors.append(Tensor("Z", "sink", (h,), "f32"))
    for st in dict.fromkeys((q_storage, k_storage)):
        if st.table:
            tensors.append(Tensor(st.table, "table", (b,), "i32"))
    if page is not None:
        tensors.append(Tensor("bt", "table", page.index, "i32"))
    tensors += [Tensor(n, "table", f.index, "f32") for n, f in scales.items() if f is not None]
    indices = [Index("b", Var("B")), Index("h", Int(heads)), Index("q", M, q_storage), Index("k", N, k_storage)]
    indices.append(Index("d", Int(depth)))
    if features is not None:
        indices.append(Index("e", Int(features)))
    return Attention(
        name="test",
        indices=tuple(indices),
        tensors=tuple(tensors),
        pairs=(("Q", "K"),),
        value="V",
        output="O",
        lse="L",
        q="q",
        k="k",
        contracted=("d",),
        feature=feature.name,
        scale=op("/", 1, op("sqrt", depth)) if scale is None else scale,
        scores=scores,
        mask=mask,
        sink=fetch("Z", h) if sink else None,
        gradient=Gradient(grad) if grad else None,
        assumes=(),
        dropout=None if dropout is None else Dropout(dropout),
    )


def mla(
    *, heads: int = 4, latent: int = 16, rope: int = 8, paged: int | None = None, grad: tuple[str, ...] = ()
) -> Attention:
    """Absorbed latent attention: two pairs over one latent head, whose keys C are the values too."""
    c, r = Var("c"), Var("r")
    page = None if paged is None else fetch("bt", b, op("//", k, paged))
    storage = DENSE if paged is None else Storage("lengths", "len_k")
    tensors = [
        Tensor("Q", "query", (b, q, h, c), "bf16"),
        Tensor("Qr", "query", (b, q, h, r), "bf16"),
        Tensor("C", "key", (b, k, c), "bf16", paged=page),
        Tensor("R", "key", (b, k, r), "bf16", paged=page),
        Tensor("O", "output", (b, q, h, c), "bf16"),
        Tensor("L", "lse", (b, h, q), "f32"),
    ]
    if page is not None:
        tensors += [Tensor("len_k", "table", (b,), "i32"), Tensor("bt", "table", page.index, "i32")]
    indices = (
        Index("b", Var("B")),
        Index("h", Int(heads)),
        Index("q", M),
        Index("k", N, storage),
        Index("c", Int(latent)),
        Index("r", Int(rope)),
    )
    return Attention(
        name="mla",
        indices=indices,
        tensors=tuple(tensors),
        pairs=(("Q", "C"), ("Qr", "R")),
        value="C",
        output="O",
        lse="L",
        q="q",
        k="k",
        contracted=("c", "r"),
        feature="c",
        scale=op("/", 1, op("sqrt", latent + rope)),
        scores=(),
        mask=BOTTOM_RIGHT,
        sink=None,
        gradient=Gradient(grad) if grad else None,
        assumes=(),
        dropout=None,
    )
