"""Kernels of Ampere's and Ada's warps on the GPU at hand: the same source, compiled for this device's own machine code."""

from __future__ import annotations

from functools import cache

import torch

from tilec.ampere import WarpOptions, warp_passes
from tilec.backends.cuda import compile_program
from tilec.backends.cuda.launch import Kernel
from tilec.frontend import read_text
from tilec.native import lower_native
from tilec.passes.choose_tiles import Choice, choose_tiles
from tilec.passes.lower_attention import lower_attention
from tilec.passes.map_blocks import BlockMap, map_blocks
from tilec.passes.names import distinct_indices
from tilec.passes.online_softmax import online_softmax
from tilec.passes.prove_mask import prove_mask
from tilec.passes.tidy import tidy
from tilec.pipeline import bytes_per_key, keys_in_memory
from tilec.targets import target
from tilec.tune.classes import mask_class


def arch() -> str:
    """`sm_90` on an H200: these kernels use nothing that is later than sm_80."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def loaded(program) -> Kernel:
    return Kernel(compile_program(program, arch=arch()), torch.device("cuda", torch.cuda.current_device()))


@cache
def kernel(text: str, on: str = "sm80") -> Kernel:
    """The first shape that a target's table has for the spec, with its schedule lines."""
    read = read_text(text)
    (attn,) = read.kernels
    return loaded(lower_native(attn, on, read.schedule(attn.name, on)))


def at_shape(text: str, rows: int, keys: int, options: WarpOptions) -> Kernel:
    """The spec's kernel at any shape, whatever the table says."""
    attn = distinct_indices(read_text(text).kernels[0])
    program = online_softmax(prove_mask(lower_attention(attn, "sm80"), attn), attn.q, attn.k)
    program = choose_tiles(program, attn, Choice(rows, keys, None, None, "spec"), pad="all")
    order = "longest_first" if mask_class(attn) == "growing" else "linear"
    l2 = target("sm90").l2
    program = tidy(
        map_blocks(program, BlockMap(order, l2=l2, bytes_per_key=bytes_per_key(attn), keys=keys_in_memory(attn)))
    )
    for _, run in warp_passes(options):
        program = run(program)
    return loaded(program)
