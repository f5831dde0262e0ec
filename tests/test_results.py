"""The README's speed table is what the results file says, and no bar is missed in it."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
