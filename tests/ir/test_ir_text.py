"""The text form of programs: everything prints to text that parses back to the same program."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilec.ir import nodes as n
from tilec.ir.expr import COMPARISONS, OPS, Bool, Expr, Fetch, Float, Int, Iota, Op, Read, Reduce, Var, show
from tilec.ir.parse import ProgramSyntaxError, parse_expr, parse_program
from tilec.ir.print import show_program, show_stmt
from tilec.ir.text import is_word

names = st.sampled_from(
    ["a", "sK", "k_full", "wg", "stages", "queue", "down", "x2", "for_", "on", "where_", "full", "in_"]
)
texts = st.one_of(names, st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=6))
dtypes = st.sampled_from(["bf16", "f16", "f32", "e4m3", "e5m2", "i32", "i64", "bool"])
leaves = st.one_of(
    st.integers().map(Int),
    st.floats().map(lambda x: Float(math.nan if math.isnan(x) else x)),
    st.booleans().map(Bool),
    names.map(Var),
    names.map(Iota),
    names.map(Read),
)


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    operators = st.sampled_from(sorted(OPS)).flatmap(
        lambda name: st.tuples(*[inner] * OPS[name].arity).map(lambda args: Op(name, args))
    )
    return st.one_of(
        operators,
        st.builds(Fetch, names, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Reduce, st.sampled_from(["max", "sum"]), names, inner),
        st.builds(Read, names, inner),
    )


exprs = st.recursive(leaves, _grow, max_leaves=8)
small = st.recursive(leaves, _grow, max_leaves=3)
many = st.lists(small, max_size=3).map(tuple)
maybe = st.none() | small
windows = st.lists(st.builds(n.Window, names, small, small), max_size=2).map(tuple)
slots = st.builds(n.Slot, names, maybe, windows)
bars = st.builds(n.Bar, names, small)
counts = st.integers(0, 99)
plain = st.one_of(
    st.builds(n.Let, names, small),
    st.builds(n.Seek, names, small, small, small),
    st.builds(n.Compute, slots, small, unless=maybe),
    st.builds(n.Load, slots, names, many, maybe, small, st.booleans(), st.none() | texts),
    st.builds(n.Store, names, many, small, st.lists(names, max_size=3).map(tuple), maybe),
    st.builds(n.Mma, slots, slots, slots, st.booleans(), st.none() | texts),
    st.builds(n.Copy, slots, names, many, maybe, bars, st.none(), st.booleans()),
    st.builds(n.Move, slots, slots, st.none() | texts),
    st.builds(n.Send, slots, small, bars),
    st.builds(n.Copy, slots, names, many, maybe, st.none(), texts),
    st.builds(n.Await, texts, counts),
    st.builds(n.Wait, bars, small),
    st.builds(n.Arrive, bars, maybe, st.booleans()),
    st.builds(n.Sync, bars),
    st.builds(n.Claim, names, names),
    st.builds(n.Priority, counts),
    st.builds(n.Fence, texts),
)
orders = st.lists(
    st.builds(n.Interleave, counts, st.lists(st.tuples(texts, counts), min_size=1, max_size=2).map(tuple)), max_size=2
).map(tuple)
proofs = st.builds(
    n.Proof,
    small,
    st.tuples(small, small),
    st.sampled_from(["all", "left", "full", "right"]),
    counts,
    st.text(max_size=9),
)


def _nest(inner: st.SearchStrategy[n.Stmt]) -> st.SearchStrategy[n.Stmt]:
    body = st.lists(inner, max_size=3).map(tuple)
    return st.one_of(
        st.builds(n.If, small, body, body),
        st.builds(n.For, names, small, small, body, st.none() | proofs, st.none() | counts, st.booleans()),
        st.builds(n.While, small, body),
        st.builds(n.Cluster, texts, body, orders),
        st.builds(n.Compute, slots, small, body, counts, counts, maybe),
    )


statements = st.recursive(plain, _nest, max_leaves=5)
params = st.lists(st.tuples(texts, counts | texts), max_size=2).map(tuple)
layouts = st.builds(n.Layout, texts, params)


def _buffers(space: str) -> st.SearchStrategy[tuple[n.Buffer, ...]]:
    axes = st.lists(st.builds(n.Axis, names, small), max_size=3).map(tuple)
    buffer = st.builds(
        n.Buffer, names, st.just(space), dtypes, axes, st.integers(1, 4), st.none() | layouts, st.none() | names
    )
    return st.lists(buffer, max_size=2).map(tuple)


barriers = st.builds(n.Barrier, names, st.sampled_from(["mbarrier", "named"]), counts, st.integers(1, 4), st.booleans())
roles = st.builds(
    n.Role,
    names,
    st.sampled_from(["block", "warp", "warpgroup", "wave"]),
    st.integers(1, 8),
    st.lists(statements, max_size=3).map(tuple),
    st.none() | names,
    st.none() | counts,
    st.none() | counts,
    _buffers("register"),
)
coords = st.lists(st.tuples(names, small), max_size=2).map(tuple)
programs = st.builds(
    n.Program,
    st.one_of(names, st.tuples(names, names).map(".".join), texts),
    texts,
    st.lists(st.tuples(names, st.integers()), max_size=2).map(tuple),
    st.lists(names, max_size=2).map(tuple),
    st.lists(
        st.builds(n.Global, names, st.sampled_from(["in", "param", "out", "table", "counter"]), dtypes, many),
        max_size=2,
    ).map(tuple),
    st.one_of(
        st.builds(n.Grid, small, small, texts, coords, numbers=params, early=st.booleans()),
        st.builds(n.Grid, small, small, texts, coords, st.integers(2, 8), names, params, st.booleans()),
    ),
    _buffers("shared"),
    st.lists(barriers, max_size=2).map(tuple),
    st.lists(roles, max_size=2).map(tuple),
    st.lists(
        st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cs"]), max_size=9),
        max_size=2,
    ).map(tuple),
    st.lists(st.tuples(names, small), max_size=2).map(tuple),
)


@given(exprs)
@settings(max_examples=400, deadline=None)
@example(Op("neg", (Int(3),)))
@example(Op("**", (Int(-3), Op("neg", (Int(2),)))))
@example(Op("neg", (Op("**", (Float(-0.0), Int(2))),)))
@example(Op("-", (Var("a"), Op("-", (Int(-1), Int(-2))))))
def test_expressions_read_back(e: Expr):
    assert parse_expr(show(e)) is e


@given(programs)
@settings(max_examples=150, deadline=None)
def test_programs_read_back(p: n.Program):
    text = show_program(p)
    assert parse_program(text) == p


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a + b * c", Op("+", (Var("a"), Op("*", (Var("b"), Var("c")))))),
        ("-3 ** 2", Op("neg", (Op("**", (Int(3), Int(2))),))),
        ("a - b - c", Op("-", (Op("-", (Var("a"), Var("b"))), Var("c")))),
        ("not a and b", Op("and", (Op("not", (Var("a"),)), Var("b")))),
        ("max[k](@S[j % 2])", Reduce("max", "k", Read("S", Op("%", (Var("j"), Int(2)))))),
        ("max(a, bt[b, k // 64])", Op("max", (Var("a"), Fetch("bt", (Var("b"), Op("//", (Var("k"), Int(64)))))))),
        ("-inf", Float(-math.inf)),
    ],
)
def test_readings(text: str, same: Expr):
    assert parse_expr(text) is same


HEADER = "program p on cpu\ngrid tiles 1 ctas 1 order linear\n"


PARTS = (
    n.Interleave,
    n.Proof,
    n.Slot,
    n.Window,
    n.Bar,
    n.Buffer,
    n.Barrier,
    n.Role,
    n.Grid,
    n.Axis,
    n.Layout,
    n.Global,
    n.Program,
)


@pytest.mark.parametrize("node", [*n.Stmt.__subclasses__(), *PARTS])
def test_every_field_is_in_the_random_programs(node: type):
    """A field that the strategies above leave at its default would be lost in printing without being noticed."""
    covered = {
        "Let": 2, "Seek": 4, "Compute": 6, "Load": 7, "Store": 5, "Mma": 5, "Copy": 7, "Move": 3, "Send": 3, "Await": 2,
        "Wait": 2, "Arrive": 3, "Sync": 1, "Claim": 2, "Priority": 1, "Fence": 1, "If": 3, "For": 7, "While": 2,
        "Cluster": 3, "Interleave": 2, "Proof": 8, "Slot": 3, "Window": 3, "Bar": 2, "Buffer": 7, "Barrier": 5, "Role": 8,
        "Grid": 8, "Axis": 2, "Layout": 2, "Global": 4, "Program": 11,
    }  # fmt: skip
    assert len(fields(node)) == covered[node.__name__]


def test_comments_blank_lines_and_broken_lines_are_layout():
    plain = HEADER + 'role main : 1 block\n  let a = min(1, 2)\n  fence "#"\n'
    noisy = HEADER + '\n# why\nrole main : 1 block   # one\n\n  let a = min(1,\n      2)  # two\n\n  fence "#"\n\n'
    assert parse_program(noisy) == parse_program(plain)


def test_notes_are_the_comments_below_the_first_line():
    text = HEADER.replace("\n", "\n# a note\n#  indented\n", 1) + "# not a note\nrole main : 1 block\n  pass\n"
    assert parse_program(text).notes == ("a note", " indented")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("let = 3", "line 4, column 7"),
        ("mma S = Q * K", "line 4, column 13"),
        ("copy sK = K[0] signal", "line 4"),
        ("let a = foo(1)", "no function foo of 1"),
        ("let a = min[k](1)", "no reduction min"),
        ("let a = sum[k, 0](1)", "no reduction sum"),
        ("let a = sum[2](1)", "no reduction sum"),
        ("for j in 0 .. 3", "line 4, column 18"),
        ("if a\n    let a = 1\n   let b = 2", "indent"),
    ],
)
def test_mistakes_name_the_place(line: str, place: str):
    with pytest.raises(ProgramSyntaxError, match=place):
        parse_program(HEADER + "role main : 1 block\n  " + line + "\n")


@pytest.mark.parametrize("word", ["max", "iota", "load", "inf", "two words", "", "2x"])
def test_reserved_names_are_no_words(word: str):
    assert not is_word(word)


def test_a_statement_is_quoted_on_one_line():
    slot = n.Slot("sK", Op("%", (Var("j"), Int(2))), (n.Window("k", Int(0), Int(8)),))
    copy = n.Copy(slot, "K", (Iota("k"),), Op("<", (Iota("k"), Var("N"))), n.Bar("full", Int(1)))
    assert show_stmt(copy) == "copy sK[j % 2]{k: 0 for 8} = K[iota(k)] where iota(k) < N signal full[1]"


def test_comparisons_never_chain():
    for op in COMPARISONS:
        inner = Op(op, (Var("a"), Var("b")))
        assert show(Op(op, (inner, Var("c")))) == f"(a {op} b) {op} c"
