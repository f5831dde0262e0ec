"""Schedule blocks as data, and how a target's block overrides `on any`."""

from tilec.frontend import read_text
from tilec.schedule import EMPTY, Schedule, Strategy, merge

KERNEL = """
kernel f {
  index b : B, h : 8, q : M, k : N, d : 64
  query Q[b, q, h, d] : bf16
  key K[b, k, h, d] : bf16
  value V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
}
"""


def spec(schedules):
    return read_text(KERNEL + schedules)


def test_every_line():
    assert spec("""
    schedule f on sm90 {
      tile q = 128  tune k in {64, 176}  warps ping_pong(consumer = 2)  stages 2  overlap off  rescale conditional 8
      skip table  order residue, q  split k = auto  map xcd by h  cluster 2
    }
    """).schedule("f", "sm90") == Schedule(
        tile=(("q", 128),),
        choices=(("k", (64, 176)),),
        warps=Strategy("ping_pong", (("consumer", 2),)),
        stages=2,
        overlap=False,
        rescale=("conditional", 8.0),
        skip="table",
        order=("residue", "q"),
        split=("k", None),
        map=("xcd", "h"),
        cluster=2,
    )


def test_short_forms():
    found = spec("schedule f on sm80 { warps split_q(4) rescale eager split k = 3 map linear overlap on }").schedule(
        "f", "sm80"
    )
    assert found.warps == Strategy("split_q", (("warp", 4),))
    assert found.warps.get("warp") == 4
    assert (found.rescale, found.split, found.map, found.overlap) == (("eager", None), ("k", 3), ("linear", None), True)


def test_a_target_overrides_any_line_by_line():
    s = spec("""
    schedule f on any { tile q = 64, k = 64 stages 2 skip proved overlap on }
    schedule f on sm90 { tile q = 128 stages 3 overlap off }
    schedule f on gfx942 { tune k in {32, 64} }
    """)
    sm90, gfx942, cpu = (s.schedule("f", t) for t in ("sm90", "gfx942", "cpu"))
    assert (dict(sm90.tile), sm90.stages, sm90.skip, sm90.overlap) == ({"k": 64, "q": 128}, 3, "proved", False)
    assert (dict(gfx942.tile), dict(gfx942.choices)) == ({"q": 64}, {"k": (32, 64)})
    assert cpu == s.schedules["f", "any"]
    assert s.schedule("f", "sm80").size("q") == 64


def test_no_schedule():
    assert spec("").schedule("f", "sm90") == EMPTY


def test_merging_with_nothing_changes_nothing():
    one = Schedule(tile=(("q", 64),), stages=2)
    assert merge(one, EMPTY) == one
    assert merge(EMPTY, one) == one


def test_spans_are_those_of_the_lines():
    text = "schedule f on any { tile q = 64, k = 128  stages 2 }"
    found = spec(text).schedule("f", "any")
    whole = KERNEL + text

    def written(key):
        return whole[found.spans[key].start : found.spans[key].end]

    assert [written(x) for x in ("tile", "tile.k", "stages")] == ["tile q = 64, k = 128", "k = 128", "stages 2"]
