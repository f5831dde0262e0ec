"""Broken files: every text gives a spec or faults with a place, mistakes do not hide each other, and none makes two."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import GRAMMAR_WORDS, specs

from tilec.dsl.faults import Fault, Faults, Source, SyntaxFault, Warn, render
from tilec.dsl.spans import Span, width
from tilec.dsl.tree import MAX_DEPTH
from tilec.frontend import read_text

SOUND = """kernel f {
  index  b : B, h : 8, q : M, k : N, d : 64
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / sqrt(64)
  mask   k <= q
  grad   Q, K
}

schedule f on any {
  tile   q = 128, k = 64
  stages 2
}
"""


def faults_of(text):
    try:
        read_text(text)
    except Faults as e:
        return e.faults
    return []


def check_faults(text):
    """What must hold for any text: typed faults inside the text that can be shown."""
    for f in faults_of(text):
        assert isinstance(f, Fault)
        assert f.span is None or (0 <= f.span.start <= len(text) and f.span.line <= text.count("\n") + 1)
        assert render(f)


pieces = st.sampled_from(
    [*sorted(GRAMMAR_WORDS), *"()[]{}:,=+-*/%<>!$#\n", "s", "q", "Q", "17", "1.5", "é", "\t", "\0", "//", "=="]
)


@settings(max_examples=300, deadline=None)
@given(
    specs(),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.lists(pieces, max_size=3)), min_size=1, max_size=3),
)
def test_any_edit_of_a_spec_gives_a_spec_or_faults(text, edits):
    for where, dropped, put in edits:
        at = int(where * len(text))
        text = text[:at] + " ".join(put) + text[at + dropped :]
    check_faults(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.lists(pieces, max_size=20).map(" ".join))
@example("\f")  # white space elsewhere, and none here
def test_any_text_gives_faults(text):
    assert faults_of(text)
    check_faults(text)


BREAKS = {  # one line of SOUND → a broken one, and its code
    "  query  Q[b, q, h, d] : bf16": ("  query  Q[b, q, h d] : bf16", "E0104"),
    "  value  V[b, k, h, d] : bf16": ("  value  V[b, k, h, d] :", "E0105"),
    "  scale  1 / sqrt(64)": ("  scael  1 / sqrt(64)", "E0102"),
    "  mask   k <= q": ("  mask   k <= q and", "E0105"),
    "  grad   Q, K": ("  grad   Q, K $", "E0101"),
    "  tile   q = 128, k = 64": ("  tile   q = 128, k = many", "E0104"),
    "  stages 2": ("  stage  2", "E0102"),
}


@given(st.sets(st.sampled_from(sorted(BREAKS)), min_size=1))
def test_each_mistake_has_one_caret(broken):
    text = SOUND
    for line in broken:
        text = text.replace(line, BREAKS[line][0])
    lines = SOUND.splitlines()
    expected = sorted((lines.index(line) + 1, BREAKS[line][1]) for line in broken)
    assert [(f.span.line, f.code) for f in faults_of(text)] == expected


def test_a_broken_kernel_does_not_silence_the_others():
    text = SOUND.replace("mask   k <= q", "mask   k <=") + SOUND.replace("f ", "g ").replace("k <= q", "kk <= q")
    assert [f.code for f in faults_of(text)] == ["E0105", "E0201"]


@pytest.mark.parametrize("cut", range(1, len(SOUND.splitlines())))
def test_a_truncated_file_says_that_it_is_not_closed(cut):
    lines = SOUND.splitlines()[:cut]
    codes = {f.code for f in faults_of("\n".join(lines))}
    assert codes == ({"E0103"} if cut not in (10, 11) else set())


@pytest.mark.parametrize("extra", range(-4, 4))
def test_depth_is_the_same_limit_for_a_file_and_a_statement(extra):
    text = SOUND.replace("k <= q", f"{'not ' * (MAX_DEPTH + extra)}k <= q")
    assert [f.code for f in faults_of(text)] in ([], ["E0106"])
    assert [f.code for f in faults_of(text.replace("grad   Q, K", "grad   Q K"))] in (["E0104"], ["E0106", "E0104"])


def test_parentheses_are_no_depth():
    assert not faults_of(SOUND.replace("k <= q", f"{'(' * 5000}k <= q{')' * 5000}"))


def test_a_wrong_name_is_reported_once():
    text = SOUND.replace("k <= q", "w <= q and w + q < 4 or kk == w")
    assert [f.message for f in faults_of(text)] == ["the name `w` is not declared", "the name `kk` is not declared"]


@pytest.mark.parametrize("line", ["mask   k <= q", "scale  1 / sqrt(64)"])
def test_the_caret_counts_display_columns(line):
    text = SOUND.replace(line, f"\t{line}  # 漢字").replace("1 / sqrt", "1 / sqrd").replace("k <= q", "kk <= q")
    (fault,) = [f for f in faults_of(text) if f.span.line == SOUND.splitlines().index(f"  {line}") + 1]
    *_, shown, carets = [x for x in render(fault).split("\n") if not x.startswith("    =")]
    assert width(carets[: carets.index("^")]) == shown.index("sqrd" if "scale" in line else "kk")


def test_rendering():
    source = Source("x.tile", "first\nsecond \x1b line\r\n")
    fault = SyntaxFault("E0104", "no", Span(6, 12, 2, 1), note="why", hint="how", source=source)
    assert (
        render(fault)
        == "error[E0104]: no\n --> x.tile:2:1\n  2 | second \ufffd line\n    | ^^^^^^\n    = why\n    = how"
    )
    assert render(Warn("W0503", "slow")).startswith("warning[W0503]: slow")
    with pytest.raises(ValueError, match="cannot carry"):
        SyntaxFault("E0201", "wrong group")
