"""`explain` of native kernels: offsets are the printer's, registers add up, and the timeline comes as text, JSON and SVG."""

import json
import re
import xml.etree.ElementTree as xml
from itertools import pairwise

import pytest
from click.testing import CliRunner

from tilec.backends.cuda.emit import emit
from tilec.backends.cuda.shared import place
from tilec.cli import main
from tilec.explain.native import POSITIONS, lines, native_facts, shared_map
from tilec.frontend import read_text
from tilec.native import lower_native
from tilec.targets import target

SPEC = """\
kernel attend {{
  index  b : B, h : 4, q : M{packed}, k : N{packed}, d : {d}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / 8
  mask   k <= q
}}
"""


def facts(d=64, packed="", sizes=None):
    attn = read_text(SPEC.format(d=d, packed=packed)).kernels[0]
    program = lower_native(attn, "sm90")
    return program, native_facts(program, attn, target("sm90"), sizes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    (folder / "spec.tile").write_text(SPEC.format(d=64, packed=""))
    environment = {"TILEC_CACHE": str(folder / "cache")}

    def start(*words):
        arguments = ["explain", str(folder / "spec.tile"), *words]
        return CliRunner(env=environment).invoke(main, arguments)

    return start


@pytest.mark.parametrize("d", [64, 128, 256])
def test_the_map_is_what_the_printer_does(d):
    program, found = facts(d)
    places = place(program)
    assert {p.name: p.offset for p in found.pieces if p.name != "barriers"} == {
        n: p.offset for n, p in places.buffers.items()
    }
    assert found.total == places.total == emit(program).shared <= found.limit
    for a, b in pairwise(found.pieces):
        assert a.offset + a.bytes <= b.offset
    last = found.pieces[-1]
    assert last.name == "barriers" and last.offset + last.bytes <= found.total
    assert shared_map(program) == (found.pieces, found.total)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_registers_are_those_of_the_note_and_fit_the_unit(d):
    program, found = facts(d)
    assert found.used <= found.pool == target("sm90").registers
    (consumer,) = (s for s in found.shares if s.role == "consumer")
    note = next(n for n in program.notes if "registers of" in n)
    assert f"= {sum(n for _, n in consumer.tiles)} registers of {consumer.registers}" in note
    assert sum(s.threads for s in found.shares) == emit(program).threads


def test_every_line_is_shown():
    _, found = facts(128)
    text = "\n".join(lines(found))
    assert f"M = {POSITIONS}" in text
    for p in found.pieces:
        assert re.search(rf"{p.offset:,}  {p.name} +{p.stages} x {p.stage:,} ", text)
    assert "consumer   256 threads x 240 = 61,440" in text
    assert re.search(r"^  matrix +\|M{90}", text, re.M)


def test_a_timeline_that_depends_on_tensors_says_so():
    _, found = facts(packed=" packed cu")
    assert found.timeline is None
    assert "only a call knows" in "\n".join(lines(found))


def test_explain_shows_it_and_writes_the_picture(run, tmp_path):
    picture = tmp_path / "t.svg"
    shown = run("--target", "sm90", "--shape", "B=1,M=2048,N=2048", "--svg", str(picture))
    assert shown.exit_code == 0, shown.stderr
    assert xml.parse(picture).getroot()[0].text == "attend on sm90, B = 1, M = 2048, N = 2048"
    for part in ("shared memory, ", "registers\n", "timeline of a block, for B = 1, M = 2048", "NVIDIA H200 datasheet"):
        assert part in shown.stdout
    (data,) = json.loads(run("--target", "sm90", "--json").stdout)
    native = data["native"]
    assert native["shared_map"]["bytes"] <= native["shared_map"]["limit"]
    assert native["registers"]["used"] <= native["registers"]["pool"]
    assert {s[0] for s in native["timeline"]["model"]["spans"]} == set(native["timeline"]["model"]["lanes"])


def test_what_has_no_timeline_has_no_picture(run, tmp_path):
    refused = run("--target", "gfx942", "--svg", str(tmp_path / "never.svg"))
    assert refused.exit_code == 1 and "E0908" in refused.stderr and "toolchain" in refused.stderr
    assert not list(tmp_path.iterdir())
