"""One broken rule at a time: what `ir.verify` says about it."""

from __future__ import annotations

import re

import pytest
from ir_oracle import edited, read

from tilec.ir.expr import Int
from tilec.ir.nodes import Axis, Buffer, Copy, For, rewrite, walk
from tilec.ir.parse import parse_program
from tilec.ir.verify import IRError, verify

TEXT = """\
program p on sm90
tile T = 8
extent N
tensor t : in f32[N, 2]
tensor i : table i32[N]
tensor out : out f32[N]
tensor c : counter i32[]
grid tiles N ctas N order linear
shared s : f32[k = T, d = 2] stages 2
barrier f : mbarrier arrivals 1 stages 2 tx
barrier m : mbarrier arrivals 1
barrier n : named arrivals 1
role r : 1 warpgroup as w
  register x : f32[k = T]
  register a : bf16[q = 4, d = 2]
  register b : bf16[k = T, d = 2]
  register y : f32[q = 4, k = T]
  register e : i32[k = T]
  let j = N // 2
  copy s[j % 2] = t[j + iota(k), iota(d)] where j + iota(k) < N signal f[j % 2]
  wait f[j % 2] parity 0
  x = max[d](@s[j % 2]) + j
  a = 1.0
  b = 0.5
  e = iota(k)
  mma y = a . b queue q
  x = @x + 1.0 after 1 of 2
    await q pending 0
  for g in 0 .. j
    let u = g + cta + w
    x{k: 0 for 4} = 0.0
    if u > 3
      let z = 1
    else
      let z = 2
    x = @x * z
  store out[iota(k)] over k = @x where iota(k) < N
  arrive m
  wait m parity 0
  sync n
  claim v from c
"""

BROKEN = {
    ("let j = N // 2", "let j = N // k2"): "`let j = N // k2`: k2 is not defined on every path to here",
    ("let z = 2", "let y2 = 2"): "`x = @x * z`: z is not defined on every path",
    ("  store out", "  let o = u\n  store out"): "`let o = u`: u is not defined on every path",
    ("for g in", "for j in"): "loop variable j has another meaning",
    ("let u = g", "let g = 1\n    let u = g"): "loop variable g is assigned in its loop",
    ("let u = g", "let N = 1\n    let u = g"): "N has another meaning and cannot be assigned",
    ("let u = g", "let x = 1\n    let u = g"): "x has another meaning",
    ("extent N", "extent N, T"): "T names two things",
    ("extent N", "extent N, sqrt"): "'sqrt' cannot name an extent",
    ("register x", "register s"): "s names two things",
    ("barrier n", "barrier m"): "m names two things, one of them a barrier",
    ("t : in f32[N, 2]", "t : in f32[N, cta]"): "a dimension of t is cta, which uses more than extents",
    ("ctas N", "ctas i[0]"): "the grid is i[0], which uses more than extents",
    ("c : counter i32[]", "c : counter i32[N]"): "counter c must be one integer",
    ("claim v from c", "claim v from i"): "i is no counter",
    ("m : mbarrier arrivals 1", "m : mbarrier arrivals 0"): "barrier m needs at least one arrival",
    ("n : named arrivals 1", "n : named arrivals 1 tx"): "barrier n counts bytes, which only an mbarrier does",
    ("shared s : f32[k = T", "shared s : f32[k = N"): "axis k of s has size N, which is no positive constant",
    ("register x : f32[k = T]", "register x : f32[k = T] alias s"): "x reuses the memory of s, which is no other register buffer",
    ("role r : 1", "role r : 0"): "it has no instance",
    ("x = max[d](@s[j % 2]) + j", "x = @s[j % 2] + j"): "the value has axes d, which the destination lacks",
    ("x = max[d](@s[j % 2])", "x = max[d](@S[j % 2])"): "there is no buffer S here",
    ("x = max[d](@s[j % 2])", "x = max[d](@s)"): "s has 2 stages: which one?",
    ("x = max[d](@s[j % 2])", "x = max[d](@s[2])"): "stage 2 of s, which has 2",
    ("x = max[d](@s[j % 2])", "x = max[d](@s[j % 3])"): "stage j % 3 of s, which has 2",
    ("x{k: 0 for 4}", "x{k: 6 for 4}"): "lanes 6 … 9 along k of x, which has 8",
    ("x{k: 0 for 4}", "x{d: 0 for 4}"): "x has no axis d",
    ("x{k: 0 for 4}", "x{k: 0 for j}"): "the window of x has size j, which is no positive constant",
    ("x{k: 0 for 4} = 0.0", "x{k: 0 for 4} = @x"): "axis k has 4 lanes, but 8 in @x",
    ("e = iota(k)", "e = iota(k) * 0.5"): "e holds int values, but this is float",
    ("e = iota(k)", "e = iota(k) == 2"): "e holds int values, but this is bool",
    ("e = iota(k)", "e = iota(zz)"): "the number of lanes along zz is not known",
    ("if u > 3", "if u"): "u must be bool, but is int",
    ("if u > 3", "if u > 3 and u"): "and of numbers in u > 3 and u",
    ("if u > 3", "if where(u, 1, 2) == 1"): "the condition of where(u, 1, 2) is int",
    ("if u > 3", "if (u > 3) + 1 == 2"): "+ of a bool",
    ("if u > 3", "if @e > 3"): "@e > 3 must be a scalar, but has axes k",
    ("where j + iota(k) < N signal", "where j + iota(k) signal"): "j + iota(k) must be bool, but is int",
    ("t[j + iota(k), iota(d)]", "t[j + iota(k)]"): "t has 2 dimensions, not 1",
    ("t[j + iota(k), iota(d)]", "t[j * 0.5, iota(d)]"): "j * 0.5 must be int, but is float",
    ("t[j + iota(k), iota(d)]", "T2[j + iota(k), iota(d)]"): "there is no tensor T2",
    ("t[j + iota(k), iota(d)]", "c[]"): "counter c is claimed from, not read or written",
    (" signal f[j % 2]", ""): "a copy completes by a signal or by a queue: exactly one",
    ("signal f[j % 2]", "signal m"): "barrier m does not count bytes (tx)",
    ("signal f[j % 2]", "signal n"): "n is a named barrier",
    ("copy s[j % 2]", "copy b"): "a copy goes to shared memory, which b is not in",
    ("shared s : f32", "shared s : bf16"): "a copy does not convert f32 to bf16",
    ("mma y = a . b queue q", "mma x = a . b queue q"): "axis q of an mma is neither contracted",
    ("register y : f32[q = 4, k = T]", "register y : f32[q = 4, k = T, d = 2]"): "share no axis to contract",
    ("register y : f32", "register y : bf16"): "an mma sums in f32, but y is bf16",
    ("register a : bf16", "register a : f16"): "operands of two types, f16 and bf16",
    ("register a : bf16", "register a : i32"): "operand a holds no floats",
    ("    await q pending 0", "    x = 2.0\n    await q pending 0"): "`x = 2.0` writes what the statement around it uses",
    ("after 1 of 2", "after 3 of 2"): "after 3 of 2 groups",
    ("1.0 after 1", "1.0 unless @x == 1.0 after 1"): "what may be left out has statements in its middle",
    ("x = @x * z", "x = @x * z unless z"): "`unless z` is no condition",
    ("    await q pending 0", "    arrive m"): "queue q is never awaited",
    ("  sync n", "  await z pending 0\n  sync n"): "queue z is awaited, but nothing is put in it",
    ("  arrive m\n", ""): "barrier m is waited for, but nothing arrives on it",
    ("  sync n", "  sync m"): "m is an mbarrier",
    ("  sync n", "  move s[0]{k: 0 for 2} = s[1]\n  sync n"): "a move is lane by lane, but s and s have not the same lanes",
    ("  sync n", "  move x = e\n  sync n"): "a move does not convert i32 to f32",
    ("  sync n", "  load s[0] = t[iota(k), iota(d)] queue q\n  sync n"): "an asynchronous load goes to registers, and s is",
    ("wait m parity 0", "wait n parity 0"): "n is a named barrier",
    ("wait f[j % 2]", "wait f[3]"): "stage 3 of barrier f, which has 2",
    ("wait m", "wait g"): "there is no barrier g",
    ("store out[iota(k)] over k", "store t[iota(k), 0] over k"): "t is no output",
    ("store out[iota(k)] over k", "store out[j] over k"): "all lanes along k store to one element",
    ("store out[iota(k)] over k = @x", "store out[iota(q)] over q = @x"): "the value has axes k, which the destination lacks",
}  # fmt: skip


def test_the_program_is_well_formed():
    verify(parse_program(TEXT))


@pytest.mark.parametrize(("edit", "message"), BROKEN.items(), ids=BROKEN.values())
def test_a_broken_rule_is_named(edit: tuple[str, str], message: str):
    with pytest.raises(IRError, match=re.escape(message)):
        verify(edited(TEXT, edit))


def test_rules_that_text_cannot_break():
    p = parse_program(TEXT)
    role = p.roles[0]
    register = Buffer("z", "register", "f32", (Axis("k", Int(8)),))
    with pytest.raises(IRError, match="z is declared register where shared buffers stand"):
        verify(p.with_(buffers=(*p.buffers, register)))
    body = rewrite(
        role.body, lambda s: (Copy(s.dst, s.tensor, s.index, s.where, s.signal, "q"),) if isinstance(s, Copy) else None
    )
    with pytest.raises(IRError, match="exactly one"):
        verify(p.with_(roles=(role.__class__(**{**role.__dict__, "body": body}),)))
    with pytest.raises(IRError, match="more than one line"):
        verify(p.with_(notes=("a\nb",)))


def test_every_message_comes_at_once():
    p = edited(TEXT, ("if u > 3", "if u"), ("e = iota(k)", "e = 0.5"), ("wait m", "wait g"))
    with pytest.raises(IRError) as caught:
        verify(p)
    assert len(caught.value.messages) == 3
    assert all(m.startswith("role r: `") for m in caught.value.messages)


HOPPER = read("hopper_causal_d128")
WAVES = read("gfx942_pingpong_d128")
FULL = "(m * TQ + N - M + 1) // TK"
LOOPS = {
    "full reaches over the diagonal": (HOPPER, (FULL, FULL.replace("1)", "33)")), "mask is false in it"),
    "full reaches over the diagonal, in waves": (WAVES, (FULL, FULL.replace("1)", "33)")), "mask is false in it"),
    "two tiles are peeled": (HOPPER, ("for j in full .. hi - 1", "for j in full .. hi - 2"), "is not walked"),
    "the first tile is left out": (WAVES, ("for j in 0 .. full", "for j in 2 .. full"), "tile 0 is not walked"),
    "a tile is walked twice": (WAVES, ("for j in full .. hi", "for j in max(0, full - 1) .. hi"), "walked twice"),
    "tiles before the first key": (
        WAVES,
        ("for j in full .. hi", "for j in full - 1 .. hi"),
        "twice|before the first key",
    ),
    "rows are aligned to the top": (WAVES, ("+ TQ + N - M + TK - 1) // TK", "+ TQ + TK - 1) // TK"), "is not walked"),
    "the formula is another one": (
        WAVES,
        ("mask k <= q + N - M because", "mask k <= q because"),
        "mask is false in it",
    ),
    "keys end earlier": (WAVES, ("keys N by", "keys N - 65 by"), "reaches past the last key"),
    "tiles of another size": (WAVES, ("by TK", "by 2 * TK"), "mask is false in it|past the last key"),
}


@pytest.mark.parametrize("text", [HOPPER, WAVES], ids=["hopper", "waves"])
def test_the_schedules_are_well_formed(text: str):
    p = parse_program(text)
    verify(p)
    assert sum(isinstance(s, For) and s.proof is not None for r in p.roles for s in walk(r.body)) == 2


@pytest.mark.parametrize("name", LOOPS)
def test_wrong_loop_bounds_are_refuted(name: str):
    text, edit, message = LOOPS[name]
    p = edited(text, edit)
    verify(p, proofs=False)
    with pytest.raises(IRError, match=message):
        verify(p)
