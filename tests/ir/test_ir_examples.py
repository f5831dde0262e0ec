"""Every program that the pipeline makes of the shipped examples, after every pass: well formed, and its text reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.frontend import read_spec
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import verify
from tilec.pipeline import stages

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/spec.tile"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.parent.name)
def test_stages_are_well_formed(path: Path):
    for kernel in read_spec(path).kernels:
        for name, program in stages(kernel, "cpu"):
            assert parse_program(show_program(program)) == program, name
            verify(program)
