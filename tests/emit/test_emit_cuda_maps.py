"""Boxes that printed kernels ask for, through the tensor maps that the launcher makes: what the TMA unit brings, on the CPU.

Coordinates and addresses are evaluated from the kernel's text for each CTA of a cluster; a map is a geometry in memory (PTX ISA,
tensor dimensions and bounding boxes).  Swizzling permutes 16-byte chunks by their address, so every part of a tile that starts at
its period's multiple lies as if the whole tile had come at once.
"""

import re
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.cuda.emit import emit
from tilec.backends.cuda.maps import geometry
from tilec.backends.cuda.prelude import FUNCTIONS
from tilec.frontend import read_text
from tilec.ir.expr import show
from tilec.ir.nodes import Copy, walk
from tilec.native import lower_native

PERIOD = 1024  # bytes of a 128-byte swizzle
B, M, N = 2, 500, 300
CALL = re.compile(r"(for \(int p = 0; p < (\d+); \+\+p\) \{ )?(copy_box|copy_box_everywhere<2>)\((smem \+[^;]*)\);")


def spec(*lines, d=128, cluster=2, **parts):
    return kernel(
        *lines,
        d=f"d : {d}",
        scale=f"scale 1 / sqrt({d})",
        schedule=f"schedule f on sm90 {{ cluster {cluster} }}",
        **parts,
    )


CASES = {
    "64": spec(d=64),
    "96, causal": spec(CAUSAL, d=96),
    "128, no mask": spec(),
    "128, causal, pairs of heads": spec(CAUSAL, h="h : 4", head="h // 4"),
    "128, heads first": spec(key="K[b, h // 2, k, d]", value="V[b, h // 2, k, d] : bf16", h="h : 4", head="h // 2"),
    "192, values of 128": spec(CAUSAL, d=192, more="e : 128", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]"),
    "256": spec(d=256),
    "128, one CTA": spec(CAUSAL, cluster=1),
    "72, one CTA": spec(CAUSAL, d=72, cluster=1),
    "256, one CTA": spec(d=256, cluster=1),
    "every third": spec("mask (q - k) % 3 == 0 and k <= q", cluster=1),
    "every third, from the second": spec("mask (q - k) % 3 == 1 and k <= q", d=64, cluster=1),
    "every third, pairs": spec("mask (q - k) % 3 == 0"),
    "every third, pairs of heads": spec("mask (q - k) % 3 == 0 and k <= q", h="h : 4", head="h // 4"),
    "every seventh, 72, heads first": spec(
        "mask (q - k) % 7 == 0", d=72, cluster=1, key="K[b, h, k, d]", value="V[b, h, k, d] : bf16"
    ),
}


def bring(memory, start, g, at):
    """Elements of the box at `at`, in the order in which they come: flat memory of 2-byte elements, zeros outside."""
    index, live = np.int64(start), np.bool_(True)
    for n in reversed(range(len(g.dims))):  # the fastest dimension last
        place = at[n] + np.arange(g.box[n])
        step = 1 if n == 0 else g.steps[n - 1] // 2
        shape = [-1 if m == n else 1 for m in reversed(range(len(g.dims)))]
        index = index + (place * step).reshape(shape)
        live = live & ((place >= 0) & (place < g.dims[n])).reshape(shape)
    return np.where(live, memory[np.where(live, index, 0)], 0).ravel()


@cache
def printed(name):
    text = CASES[name]
    read = read_text(text)
    program = lower_native(read.kernels[0], "sm90", read.schedule("f", "sm90"))
    return program, emit(program)


def calls(text):
    """(multicast, panels, [address, map, barrier, *coordinates]) of every copy of a kernel's text."""
    body = re.sub(r"\s*\n\s*", " ", text[text.index('extern "C"') :].replace("#pragma unroll", ""))
    for _, panels, function, given in CALL.findall(body):
        depth, parts = 0, [""]
        for c in given:
            depth += (c == "(") - (c == ")")
            if c == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += c
        yield "everywhere" in function, int(panels or 1), [x.strip().replace("/", "//") for x in parts]


def constants(text):
    """Constants of a kernel's text, by name."""
    found = re.findall(r"constexpr (?:int|unsigned) ([^;]*);", text[text.index('extern "C"') :])
    return {n: int(x) for line in found for n, x in re.findall(r"(\w+) = (\d+)", line)}


def picked(text, scope):
    """The name that a chain of `a == b ? name : …` gives."""
    *cases, last = text.strip("()").split(" : ")
    return next((n for c, _, n in (x.partition(" ? ") for x in cases) if eval(c, {}, scope)), last)


def copies(program):
    """The program's copies, and the sizes of the axes of what they fill."""
    constant = dict(program.tile)
    buffers = {b.name: b for b in program.buffers}
    for role in program.roles:
        for s in walk(role.body):
            if isinstance(s, Copy):
                axes = buffers[s.dst.buffer].axes
                yield s, {a.name: int(eval(show(a.size), {}, constant)) for a in axes}


def wanted(s, sizes, array, scope):
    """(lanes of the slot, what the program's copy brings there for one CTA)."""
    windows = {x.axis: x for x in s.dst.windows}
    lanes = {
        n: np.arange(int(eval(show(windows[n].size), {}, scope)) if n in windows else size) for n, size in sizes.items()
    }
    lanes = {n: x.reshape(-1, 1) if n == next(iter(sizes)) else x for n, x in lanes.items()}
    names = {**scope, **{n: n for n in sizes}, "iota": lanes.get}
    index = np.broadcast_arrays(*(eval(show(i), {}, names) for i in s.index))
    live = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(index, array.shape, strict=True)])
    values = np.where(live, array[tuple(np.where(live, i, 0) for i in index)], 0)
    starts = {n: eval(show(windows[n].start), {}, scope) if n in windows else 0 for n in sizes}
    return tuple(starts[n] + x for n, x in lanes.items()), values


def floor_mod(x, y):
    return x % y


@pytest.mark.parametrize("j", [0, 1, 2], ids=lambda j: f"tile of keys {j}")
@pytest.mark.parametrize("name", CASES)
def test_boxes_bring_what_the_copies_say(name, j):
    program, made = printed(name)
    classes = next((n.value for c, n in program.grid.coords if c == "r"), 0)
    cluster, paired = program.grid.cluster, "h_pair" in dict(program.grid.coords)
    boxes = {p.name: p.box for p in made.parameters if p.box}
    extents = {"B": B, "M": M, "N": N, **constants(made.text)}
    arrays = {
        t.name: np.arange(1, 1 + np.prod(shape), dtype=np.int64).reshape(shape)  # every element another
        for t in program.tensors
        if any(b.tensor == t.name for b in boxes.values()) and (shape := [eval(show(d), {}, extents) for d in t.dims])
    }
    statements, found = list(copies(program)), list(calls(made.text))
    assert len(statements) == len(found) > 2
    for (s, sizes), (everywhere, panels, (address, map_, _, *at)) in zip(statements, found, strict=True):
        array = arrays[s.tensor]
        strides = [n // array.itemsize for n in array.strides]
        rows, lanes = sizes.values()
        room = -(-lanes // 64) * 64
        came = np.zeros((cluster, rows * room), np.int64)  # how often, in each CTA
        tile, want = np.full((cluster, rows * room), -1), np.full((cluster, rows, lanes), -1)
        for rank in range(cluster):
            scope = {**extents, "rank": rank, "smem": 0, "n": 2, "it": 0, "half": 1, "b": 1}
            scope |= {
                "q_first": 64 if classes else 256,
                "j": j,
                "j_first": j,
                "j_prev": j,
                "h": 2 + rank if paired else 1,
                "h_pair": 1,
            }
            scope |= {"r": 2, "r_": 2, "floor_mod": floor_mod}
            g = geometry(array.shape, strides, 2, asdict(boxes[picked(map_, scope)]))
            stage = 0 if s.dst.stage is None else eval(show(s.dst.stage), {}, scope)
            base = extents[s.dst.buffer] + extents[f"{s.dst.buffer}_stage"] * stage
            to = range(cluster) if everywhere else [rank]
            for p in range(panels):
                offset = eval(address, {}, {**scope, "p": p}) - base
                assert offset % PERIOD == 0 <= offset
                box = bring(array.ravel(), g.offset // 2, g, [eval(x, {}, {**scope, "p": p}) for x in at])
                part = slice(offset // 2, offset // 2 + box.size)
                tile[to, part] = box
                came[to, part] += 1
            where, values = wanted(s, sizes, array, scope)
            for r in to:
                want[(r, *where)] = values
        assert (came == 1).all(), (s.tensor, "every element comes once")
        columns = tile.reshape(cluster, room // 64, rows, 64).transpose(0, 2, 1, 3).reshape(cluster, rows, room)
        assert (columns[..., :lanes] == want).all(), s.tensor


@pytest.mark.parametrize("rank", [0, 1])
def test_descriptors_have_no_rank_of_a_cluster(rank):
    """A shared address has its CTA's rank above bit 17, where a descriptor has other fields."""
    low = re.search(r"uniform\((\(at .*?)\);", FUNCTIONS["descriptor"])[1]
    for at in range(0, 227 * 1024, 16):
        value = eval(low, {}, {"at": rank << 24 | at, "panel": 16384})
        assert (value & 0x3FFF, value >> 14) == (at >> 4, 4 * (16384 >> 4))


@pytest.mark.parametrize(("first", "rows"), [(0, 34), (1, 33), (2, 33)])
def test_a_map_of_a_class_has_its_positions(first, rows):
    box = {"tensor": "Q", "axis": 1, "rows": 64, "columns": 128, "single": False, "heads": []}
    g = geometry((2, 100, 4, 128), (51200, 512, 128, 1), 2, {**box, "period": 3, "first": first})
    assert g.dims == (64, rows, 2, 4, 2) and g.steps == (3 * 1024, 128, 256, 102400) and g.offset == first * 1024


def test_a_class_without_positions_has_a_map_inside_the_tensor():
    box = {"tensor": "Q", "axis": 1, "rows": 64, "columns": 128, "single": False, "heads": [], "period": 3, "first": 2}
    g = geometry((2, 2, 4, 128), (1024, 512, 128, 1), 2, box)
    assert g.dims[1] == 1 and g.offset == 0
