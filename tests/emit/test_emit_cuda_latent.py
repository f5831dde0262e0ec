"""Values that are keys as machine code: one ring, read by both products, at the widths that fit."""

import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.base import Variant
from tilec.backends.cuda import ALIGNED, BACKEND, PROGRAM, SHORT
from tilec.frontend import read_text
from tilec.schedule import EMPTY
from tilec.targets.inspect import sass

PAIR = ("query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16")


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", scale=f"scale 1 / sqrt({d})", schedule="", value="K", **parts)


SPECS = {
    "64": spec(CAUSAL, d=64),
    "latent of 128": spec(*PAIR, CAUSAL, key="K[b, k, d]", more="r : 64", h="h : 8"),
    "latent of 256": spec(*PAIR, CAUSAL, d=256, key="K[b, k, d]", more="r : 64", h="h : 8"),
}
BOTH = [(name, ALIGNED) for name in SPECS] + [("latent of 128", ALIGNED | SHORT)]


@pytest.mark.skipif(sass.disassembler() is None, reason="no nvdisasm here")
@pytest.mark.parametrize(("name", "features"), BOTH, ids=lambda x: x if isinstance(x, str) else " ".join(sorted(x)))
def test_one_ring_holds_keys_that_are_values(name, features):
    made = BACKEND.compile(read_text(SPECS[name]).kernels[0], "sm90", EMPTY, Variant((), features))
    program = made.sources[PROGRAM]
    (text,) = (t for n, t in made.sources.items() if n.endswith(".cu"))
    rings = [line for line in program.splitlines() if line.startswith("shared sK")]
    assert len([r for r in rings if r.startswith("shared sK ")]) == 1 and not any("again" in r for r in rings)
    assert [b["tensor"] for b in made.metadata["boxes"].values()].count("K") == 1
    assert "smem + k_full" in text and made.metadata["machine"]["steps"]
