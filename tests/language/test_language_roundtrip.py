"""Formatting: what was written parses back to the tree that was read, comments included, and formatting twice changes nothing."""

import pytest
from hypothesis import given, settings
from strategies import files, specs

from tilec.dsl.faults import Faults, Source
from tilec.dsl.format import format_text, show
from tilec.dsl.parse import parse


def read(text):
    file, faults = parse(Source("<test>", text))
    assert not faults, "\n".join(map(str, faults))
    return file


@settings(max_examples=400, deadline=None)
@given(files())
def test_what_is_printed_parses_back(file):
    text = show(file)
    assert read(text) == file
    assert show(read(text)) == text


@settings(max_examples=60, deadline=None)
@given(specs())
def test_formatting_keeps_the_tree_of_a_spec(text):
    formatted = format_text(text)
    assert read(formatted) == read(text)
    assert format_text(formatted) == formatted


COMMENTED = """\
# licence

# what it is
kernel f { # opened
 index b : B, q : M packed cu # rows
 # free
 # two


 # three
 query Q[b, # in brackets
   q, d] : bf16  # after
  value  C
  mask k <= (q + (N - M)) and (not (a == b)) or c
  # end

} # closed
schedule f on any { tile q = 128 tune k in {64,128} }
schedule f on sm90 { warps split_q( 4 ) # four
  map xcd by h }
# the end"""

FORMATTED = """\
# licence

# what it is
kernel f {
  # opened
  index  b : B, q : M packed cu  # rows
  # free
  # two

  # three
  # in brackets
  query  Q[b, q, d] : bf16  # after
  value  C
  mask   k <= q + (N - M) and not a == b or c
  # end
}  # closed

schedule f on any { tile q = 128  tune k in {64, 128} }

schedule f on sm90 {
  warps  split_q(4)  # four
  map    xcd by h
}

# the end
"""


def test_the_standard_form():
    assert format_text(COMMENTED) == FORMATTED
    assert format_text(FORMATTED) == FORMATTED


def test_a_long_mask_is_broken_at_its_outermost_operator():
    terms = [f"(q - k < {n}0000000 or k % {n} == 0)" for n in range(11, 15)]
    lines = format_text(f"kernel f {{ mask {' and '.join(terms)} }}").splitlines()
    assert lines[1] == f"  mask   {terms[0]}"
    assert lines[2:5] == [f"         and {t}" for t in terms[1:]]


def test_a_broken_file_is_not_formatted():
    with pytest.raises(Faults):
        format_text("kernel f { mask }")


def test_line_ends_of_other_systems():
    assert format_text(FORMATTED.replace("\n", "\r\n")) == FORMATTED


@pytest.mark.parametrize(
    ("text", "formatted"),
    [("", ""), ("\n\n", ""), ("# only a comment", "# only a comment\n"), ("# a\n\n\n# b\n\n", "# a\n\n# b\n")],
)
def test_files_without_blocks(text, formatted):
    assert format_text(text) == formatted
