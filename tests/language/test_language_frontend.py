"""From text to Attention: parts, order of arguments, tables, spans, and binding of symbols."""

import pytest
from hypothesis import given, settings
from strategies import specs

from tilec.dsl.faults import Faults
from tilec.frontend import bind, read_spec, read_text, unbound_constants
from tilec.ir.attention import Attention, Dropout, Gradient, Index, Storage, Tensor
from tilec.ir.expr import FALSE, TRUE, Bool, Fetch, Float, Int, Op, Var, free_vars, show

b, h, q, k, d, c, r, s, B, M, N = map(Var, "bhqkdcrsBMN")


def kernel(body, indices="b : B, h : 8, q : M, k : N, d : 64"):
    tensors = """
      query Q[b, q, h, d] : bf16
      key K[b, k, h, d] : bf16
      value V[b, k, h, d] : bf16
      output O[b, q, h, d] : bf16
    """
    return read_text(f"kernel f {{ index {indices}\n{tensors if 'query' not in body else ''}{body} }}").kernels[0]


CAUSAL_GQA = """
kernel causal_gqa {
  index  b : B, h : 32, q : M, k : N, d : 128

  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 4, d] : bf16
  value  V[b, k, h // 4, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32

  scale  1 / sqrt(128)
  mask   k <= q + N - M
  grad   Q, K, V
}
"""


def test_a_whole_kernel():
    group = Op("//", (h, Int(4)))
    assert read_text(CAUSAL_GQA).kernels == (
        Attention(
            name="causal_gqa",
            indices=(Index("b", B), Index("h", Int(32)), Index("q", M), Index("k", N), Index("d", Int(128))),
            tensors=(
                Tensor("Q", "query", (b, q, h, d), "bf16"),
                Tensor("K", "key", (b, k, group, d), "bf16"),
                Tensor("V", "value", (b, k, group, d), "bf16"),
                Tensor("O", "output", (b, q, h, d), "bf16"),
                Tensor("L", "lse", (b, h, q), "f32"),
            ),
            pairs=(("Q", "K"),),
            value="V",
            output="O",
            lse="L",
            q="q",
            k="k",
            contracted=("d",),
            feature="d",
            scale=Op("/", (Int(1), Op("sqrt", (Int(128),)))),
            scores=(),
            mask=Op("<=", (k, Op("-", (Op("+", (q, N)), M)))),
            sink=None,
            gradient=Gradient(("Q", "K", "V")),
            assumes=(),
            dropout=None,
        ),
    )


def test_latent_attention_pages_and_two_contractions():
    (attn,) = read_text("""
    kernel mla_decode {
      index  b : B, h : 128, q : M, k : N lengths seqlen_k, c : 512, r : 64
      query  Q[b, q, h, c]  : bf16
      query  Qr[b, q, h, r] : bf16
      key    C[b, k, c]     : bf16  paged pages[b, k // 64]
      key    R[b, k, r]     : bf16  paged pages[b, k // 64]
      value  C
      output O[b, q, h, c]  : bf16
      lse    L[b, h, q]     : f32
      scale  1 / sqrt(192)
      mask   k <= q + N - M
    }
    """).kernels
    assert attn.pairs == (("Q", "C"), ("Qr", "R"))
    assert (attn.contracted, attn.feature, attn.value, attn.q, attn.k) == (("c", "r"), "c", "C", "q", "k")
    assert attn.tensor("C").page == 64
    assert [t.name for t in attn.inputs] == ["Q", "Qr", "C", "R", "seqlen_k", "pages"]
    assert attn.tensor("pages") == Tensor("pages", "table", (b, Op("//", (k, Int(64)))), "i32")
    assert attn.tensor("seqlen_k") == Tensor("seqlen_k", "table", (b,), "i32")
    assert attn.index("k").storage == Storage("lengths", "seqlen_k")


def test_arguments_are_in_the_order_of_their_lines_then_tables_in_the_order_of_the_text():
    attn = kernel(
        """
      param  doc[b, k] : i32 nondecreasing
      sink   Z[h] : f32
      query  Q[b, q, h, d] : e4m3 scaled qs[b, h]
      output O[b, q, h, d] : bf16
      value  V[b, k, h // 4, d] : e4m3 scaled vs[b, h // 4]
      key    K[b, k, h // 4, d] : e4m3 scaled ks[b, h // 4]
      bias   Bt[h, q, k] : f32
      score  s = s + Bt[h, q, k]
      mask   doc[b, q] == doc[b, k]
    """,
        "b : B, h : 8, q : M lengths len_q, k : N lengths len_k, d : 64",
    )
    assert [t.name for t in attn.inputs] == ["doc", "Z", "Q", "V", "K", "Bt", "len_q", "len_k", "qs", "vs", "ks"]
    assert attn.tensor("doc").facts == {"nondecreasing"}
    assert attn.sink == Fetch("Z", (h,))
    assert attn.tensor("K").scaled == Fetch("ks", (b, Op("//", (h, Int(4)))))
    assert attn.tensor("ks").dtype == "f32"


@pytest.mark.parametrize(
    "indices",
    ["b : B, h : 8, q : M packed cu, k : N packed cu, d : 64", "h : 8, b : B, q : M, k : N lengths n, d : 64"],
)
def test_tables_of_sequences_are_read_at_the_batch_index(indices):
    attn = kernel("", indices)
    (table,) = [t for t in attn.tensors if t.slot == "table"]
    assert (table.index, table.dtype) == ((b,), "i32")


def test_rows_are_called_q_when_heads_share_one_key():
    attn = kernel("""
      query Q[b, h, q, d] : f16
      key K[b, k, d] : f16
      value V[b, k, d] : f16
      output O[b, h, q, d] : f16
    """)
    assert (attn.q, [i.name for i in attn.outer]) == ("q", ["b", "h"])


def test_features_that_differ_from_the_contracted_index():
    attn = kernel(
        """
      query Q[d, b, q, h] : f16
      key K[d, b, k, h // 2] : f16
      value V[b, k, e, h // 2] : f16
      output O[b, e, q, h] : f16
    """,
        "b : B, h : 8, q : M, k : N, d : 64, e : 32",
    )
    assert (attn.contracted, attn.feature) == (("d",), "e")


def test_an_lse_says_which_index_is_contracted_whatever_the_order_of_brackets():
    attn = kernel("""
      query Q[b, d, q, h] : f16
      key K[b, d, k, h] : f16
      value V[b, d, k, h] : f16
      output O[b, d, q, h] : f16
      lse L[h, b, q] : f32
    """)
    assert (attn.contracted, attn.feature) == (("d",), "d")


def test_values_of_every_statement():
    attn = kernel("""
      scale 0.5
      score s = 50.0 * tanh(s / 50.0)
      score s = where(k == 0, -inf, s)
      mask 0 <= q - k < 128 and not false
      assume N >= M
      assume N % 64 == 0
      dropout 0.1
      grad Q, V atomic
    """)
    assert attn.scale == Float(0.5)
    assert attn.scores == (
        Op("*", (Float(50.0), Op("tanh", (Op("/", (s, Float(50.0))),)))),
        Op("where", (Op("==", (k, Int(0))), Float(float("-inf")), s)),
    )
    distance = Op("-", (q, k))
    chain = Op("and", (Op("<=", (Int(0), distance)), Op("<", (distance, Int(128)))))
    assert attn.mask == Op("and", (chain, Op("not", (FALSE,))))
    assert attn.assumes == (Op(">=", (N, M)), Op("==", (Op("%", (N, Int(64))), Int(0))))
    assert attn.dropout == Dropout(0.1)
    assert attn.gradient == Gradient(("Q", "V"), atomic=True)


def test_what_is_absent():
    attn = kernel("")
    assert (attn.scale, attn.scores, attn.mask, attn.sink) == (Int(1), (), TRUE, None)
    assert (attn.gradient, attn.assumes, attn.dropout, attn.lse) == (None, (), None, None)


def test_spans_say_where_an_expression_was_written():
    text = CAUSAL_GQA.replace("k <= q + N - M", "k <= q + N - M and (q - k) % 4 == 0")
    (attn,) = read_text(text).kernels

    def written(e):
        span = attn.spans[e]
        return text[span.start : span.end]

    left, right = attn.mask.args
    assert written(attn.mask) == "k <= q + N - M and (q - k) % 4 == 0"
    assert (written(left), written(right)) == ("k <= q + N - M", "(q - k) % 4 == 0")
    assert written(right.args[0].args[0]) == "q - k"
    assert text[attn.tensor("K").span.start :].startswith("key    K[b")


SYMBOLIC = """
kernel f {
  index  b : B, h : H, q : M, k : N lengths n, d : D, e : E
  query  Q[b, q, h, d] : e4m3 scaled qs[b, h]
  key    K[b, k, h // G, d] : e4m3 scaled ks[b, h // G] paged pages[b, k // P]
  value  V[b, k, h // G, e] : bf16 paged pages[b, k // P]
  output O[b, q, h, e] : bf16
  scale  1 / sqrt(D)
  score  s = s * D
  mask   k <= q + D
  assume D % 8 == 0
}
"""


def test_symbols_that_tiles_need():
    (attn,) = read_text(SYMBOLIC).kernels
    assert unbound_constants(attn) == ("D", "E", "G", "P")
    assert attn.extents == ("B", "H", "M", "N", "D", "E")


def test_binding_replaces_a_symbol_everywhere():
    (attn,) = read_text(SYMBOLIC).kernels
    bound = bind(attn, {"D": 128, "E": 64, "G": 4, "P": 16})
    assert unbound_constants(bound) == ()
    assert bound.index("d").extent == Int(128)
    assert bound.tensor("K").index[2] == Op("//", (h, Int(4)))
    assert bound.tensor("K").page == 16
    assert bound.tensor("pages").index == (b, Op("//", (k, Int(16))))
    assert bound.tensor("ks").index == bound.tensor("K").scaled.index
    assert show(bound.scale) == "1 / sqrt(128)"
    everything = (bound.scale, *bound.scores, bound.mask, *bound.assumes)
    assert not set().union(*map(free_vars, everything)) & {"D", "E", "G", "P"}
    assert bound.spans[bound.mask] == attn.spans[attn.mask]
    assert bind(attn, {}) == attn


@pytest.mark.parametrize(
    ("values", "code"),
    [({"X": 1}, "E0201"), ({"D": 0}, "E0302"), ({"B": -1}, "E0302"), ({"N": 4}, "E0302"), ({"H": 6, "G": 4}, "E0301")],
)
def test_binding_refuses(values, code):
    with pytest.raises(Faults) as caught:
        bind(read_text(SYMBOLIC).kernels[0], values)
    assert {f.code for f in caught.value.faults} == {code}


@settings(max_examples=60, deadline=None)
@given(specs(schedules=False))
def test_binding_every_symbol_of_any_spec_leaves_none(text):
    (attn,) = read_text(text).kernels
    bound = bind(attn, dict.fromkeys(unbound_constants(attn), 1))
    assert unbound_constants(bound) == ()
    assert {t.name for t in bound.tensors} == {t.name for t in attn.tensors}
    assert isinstance(bound.mask, Op | Bool | Fetch)


def test_files(tmp_path):
    path = tmp_path / "causal.tile"
    path.write_text(CAUSAL_GQA)
    assert read_spec(path).kernel("causal_gqa").source == str(path)
    with pytest.raises(KeyError):
        read_spec(path).kernel("other")
    with pytest.raises(Faults, match="E0109") as caught:
        read_spec(tmp_path / "missing.tile")
    assert "No such file" in str(caught.value)
