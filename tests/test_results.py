"""The README's speed tables are what the results files say, and no bar is missed in them."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "device"))

from native_table import HEAD, table  # noqa: E402

NATIVE = ROOT / "tests" / "device" / "results" / "h200-native.json"
RESULTS = json.loads((ROOT / "tests" / "device" / "results" / "h200-forward.json").read_text(encoding="utf-8"))


def line(result):
    rows = {r["name"]: r for r in result["rows"]}
    speeds = [
        f"{result['flops'] / 1e12 / rows[name][of]:.0f}" for of in ("burst", "sustained") for name in ("tilec", "flex")
    ]
    ratios = [f"{result[f'ratio_{of}']:.2f}" for of in ("burst", "sustained")]
    case = result["case"]
    return f"| {' | '.join(map(str, (case['name'], case['d'], case['s'], *speeds, *ratios)))} |"


def test_the_readme_shows_the_results():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [x for x in map(line, RESULTS) if x not in readme] == []


def test_results_say_where_they_come_from():
    for result in RESULTS:
        assert result["commit"] != "unknown" and result["device"] and result["date"] and result["versions"]["triton"]


def test_no_bar_is_missed():
    assert [r["case"]["name"] for r in RESULTS if r["ratio_burst"] < r["case"]["bar"]] == []


def test_the_readme_shows_of_native_kernels_what_was_measured_and_no_more():
    cells = json.loads(NATIVE.read_text(encoding="utf-8")) if NATIVE.exists() else []
    for cell in cells:
        assert cell["commit"] != "unknown" and cell["versions"]["driver"]
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = lines.index(HEAD[0]) if HEAD[0] in lines else len(lines)
    shown = [x for x in lines[start : lines.index("", start)] if x] if start < len(lines) else []
    assert shown == (table(cells) if cells else [])
