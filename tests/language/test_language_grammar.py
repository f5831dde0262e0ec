"""The grammar: no conflicts, keywords bound to whole words, precedence, and every statement."""

import pytest
from hypothesis import given, settings
from strategies import GRAMMAR_WORDS, specs

from tilec.dsl import ast, grammar
from tilec.dsl.faults import Source
from tilec.dsl.format import expr
from tilec.dsl.parse import parse
from tilec.frontend import read_text


def mask(text):
    file, faults = parse(Source("<test>", f"kernel f {{ mask {text} }}"))
    assert not faults, "\n".join(map(str, faults))
    return file.kernels[0].statements[0].value


def test_strict_lalr_finds_no_conflict_and_no_collision():
    grammar.build(strict=True)


def test_the_list_of_words_is_that_of_the_grammar():
    terminals = {t.name: t.pattern.value for t in grammar.parser().terminals}
    bound = [p.removesuffix(r"\b").strip("()?:") for p in terminals.values() if p.endswith(r"\b")]
    assert {w for p in bound for w in p.split("|")} == GRAMMAR_WORDS


@pytest.mark.parametrize("word", sorted(GRAMMAR_WORDS))
def test_a_keyword_and_a_letter_is_a_name(word):
    assert mask(f"{word}x <= x{word}") == ast.Compare((ast.Name(f"{word}x"), ast.Name(f"x{word}")), ("<=",))
    assert mask(f"k <= {word}_1") == ast.Compare((ast.Name("k"), ast.Name(f"{word}_1")), ("<=",))


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a or b and c", "(a or (b and c))"),
        ("not a == b", "(not (a == b))"),
        ("a - b - c", "((a - b) - c)"),
        ("a // b * c % d", "(((a // b) * c) % d)"),
        ("-a ** b", "(- (a ** b))"),
        ("a ** -b", "(a ** (- b))"),
        ("a ** b ** c", "(a ** (b ** c))"),
        ("-a * b", "((- a) * b)"),
        ("a + b < c * d", "((a + b) < (c * d))"),
        ("0 <= a - b < 128", "(0 <= (a - b) < 128)"),
        ("(a < b) == (c < d)", "((a < b) == (c < d))"),
        ("1.5e3 < 2. * inf", "(1.5e3 < (2. * inf))"),
        ("f(a, b)[0]", None),
    ],
)
def test_precedence(text, grouped):
    if grouped is None:
        _, faults = parse(Source("<test>", f"kernel f {{ mask {text} }}"))
        assert faults
        return
    assert full(mask(text)) == grouped
    assert mask(expr(mask(text))) == mask(text)


def full(e):
    """All parentheses."""
    match e:
        case ast.Unary(op, x):
            return f"({op} {full(x)})"
        case ast.Binary(op, x, y):
            return f"({full(x)} {op} {full(y)})"
        case ast.Compare(xs, ops):
            return f"({full(xs[0])}{''.join(f' {op} {full(x)}' for op, x in zip(ops, xs[1:], strict=True))})"
        case _:
            return expr(e)


def test_spans_are_those_of_the_text():
    text = "kernel f {\n  mask\tk <= q  # why\n       and (doc[b, q] == 1)\n}"
    file, _ = parse(Source("<test>", text))
    (statement,) = file.kernels[0].statements
    for node in ast.walk(statement.value):
        shown = text[node.span.start : node.span.end]
        assert expr(mask(shown.replace("# why", ""))) == expr(node)
        before = text[: node.span.start]
        assert node.span.line == before.count("\n") + 1
        assert node.span.column == len(before) - before.rfind("\n")


def test_every_statement():
    spec = read_text("""
    kernel f {
      index  b : B, h : 8, q : M packed cu_q, k : N lengths len_k, d : D, e : 64
      query  Q[b, h, q, d] : e4m3 scaled qs[b, h]
      key    K[b, k, h // 4, d] : e4m3 scaled ks[b, h // 4] paged pages[b, k // 64]
      value  V[b, k, h // 4, e] : bf16 paged pages[b, k // 64]
      param  doc[b, k] : i64 nondecreasing nonnegative unique
      param  keep[b, k] : bool
      param  slope[h] : f32
      bias   Bt[b, h, q] : f32
      sink   Z[h] : f32
      output O[b, q, h, e] : bf16
      lse    L[b, h, q] : f32
      scale  1 / sqrt(D)
      score  s = where(q - k < 4 and true, min(s, 30.0), max(abs(s), -inf)) ** 2
      score  s = tanh(s) + exp(-s) - log(s) * slope[h] / Bt[b, h, q] % 3 // 2
      mask   0 <= q - k < 128 or not keep[b, k] or doc[b, q] == doc[b, k] and false
      assume N >= M
      dropout 0.25
    }
    schedule f on any { warps split_q(4) stages 2 overlap on rescale conditional 8 skip table order residue, q split k = auto }
    schedule f on sm90 { tile q = 128, k = 176 overlap off map longest_first cluster 2 warps specialized(consumer = 2) }
    schedule f on gfx942 { tune q in {64, 128} warps ping_pong(wave = 8) map xcd by h rescale eager skip proved }
    """)
    assert [k.name for k in spec.kernels] == ["f"]


@settings(max_examples=100, deadline=None)
@given(specs())
def test_every_valid_spec_is_read(text):
    spec = read_text(text)
    assert spec.kernel("f").q == "q"
    assert spec.kernel("f").k == "k"
