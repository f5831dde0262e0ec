"""Every example on the GPU, and every statement of the language over hundreds of positions, in tiles the compiler chooses."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from case_kit import Runner, spec
from feature_specs import FEATURES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(p for p in EXAMPLES.iterdir() if (p / "run.py").exists())
STYLES = ("normal", "shifted", "onehot", "position")
LARGER = {"M": lambda n: 7 * n + 1, "N": lambda n: 7 * n + 3}


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    return Runner("cuda", tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_an_example_runs_on_the_gpu(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    torch.manual_seed(0)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "run.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert torch.cuda.get_device_name() in printed and "FAIL" not in printed
    if folder.name == "train":
        assert "E0913" in printed or "dQ" in printed


@pytest.mark.parametrize("number", range(len(FEATURES)), ids=lambda n: FEATURES[n].name)
def test_a_feature_at_hundreds_of_positions(attend, number):
    f = FEATURES[number]
    text = re.sub(r"schedule \w+ on \w+ \{[^}]*\}", "", f.text)
    sizes = {n: LARGER.get(n, int)(v) for n, v in f.sizes[0].items()}
    if re.search(r"index.*k : M", text):
        sizes.pop("N", None)
    attend(text, sizes, constants=f.constants, lengths=f.lengths, tail=f.tail, style=STYLES[number % 4], seed=number)


@pytest.mark.parametrize("d", [16, 40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", ["mask true", "mask k <= q + N - M", "mask k <= q + N - M and k > q + N - M - 300"])
def test_head_dimensions_at_a_thousand_positions(attend, d, mask):
    attend(spec(mask, d=d, tile=None), {"B": 1, "M": 777, "N": 1500})


@pytest.mark.parametrize(("d", "e"), [(192, 128), (576, 512), (64, 128)])
def test_values_of_another_width(attend, d, e):
    attend(spec("mask k <= q + N - M", heads=4, group=4, d=d, e=e, tile=None), {"B": 1, "M": 130, "N": 900})


def test_a_long_context(attend):
    attend(spec("mask k <= q + N - M", heads=1, d=128, tile=None), {"B": 1, "M": 64, "N": 20_000})
