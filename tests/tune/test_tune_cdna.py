"""Records of shapes of gfx942's native kernels: the package's, and a user's own."""

from dataclasses import replace

import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.hip import BACKEND
from tilec.dsl.faults import CallFault
from tilec.frontend import read_text
from tilec.native import lower_native
from tilec.schedule import EMPTY, Schedule
from tilec.tune.cdna import Point, Row, points, read_rows, table, write_rows
from tilec.tune.tables import put

ROW = Row(128, Point(8, 128, 32, 32, 16, None), "a model")


def attention(d=128):
    return read_text(kernel(CAUSAL, d=f"d : {d}", scale="scale 1 / 8", schedule="")).kernels[0]


def test_rows_are_written_as_they_are_read():
    rows = (ROW, replace(ROW, value=64, point=replace(ROW.point, seldom=8.0, turns=False, waves=4)))
    assert read_rows(write_rows(rows), "r") == rows
    assert put(rows, replace(ROW, source="another")) == (rows[1], replace(ROW, source="another"))
    assert [w for w, _ in table()] == sorted(w for w, _ in table())
    for text, why in (
        ("[[waves]]\nwidth = 64", "no source"),
        ("[[waves]]\nwidth = 64\nsource = 'x'\nchips = 2", "chips"),
        ("[[waves]]\nwidth = 64\nsource = 'x'\nkeys_ahead = -1", "keys_ahead is -1, and should be .* or 0"),
    ):
        with pytest.raises(ValueError, match=why):
            read_rows(text, "r")


def test_a_users_row_is_first_for_its_widths_and_what_the_schedule_says_replaces_it():
    assert next(points(attention(), EMPTY, (ROW,))) == ROW.point
    assert next(points(attention(64), EMPTY, (ROW,))) == next(points(attention(64), EMPTY))
    pinned = next(points(attention(), Schedule(tile=(("k", 64),)), (ROW,)))
    assert pinned == replace(ROW.point, keys=64, by="spec")


def test_a_users_record_is_read_and_is_part_of_the_cache_key(tmp_path, monkeypatch):
    before = BACKEND.toolchain("gfx942")
    path = tmp_path / "r.toml"
    path.write_text(write_rows([ROW]))
    monkeypatch.setenv("TILEC_RECORD", str(path))
    assert dict(lower_native(attention(), "gfx942").tile)["TQ"] == 128
    assert set(BACKEND.toolchain("gfx942").items()) > set(before.items())
    path.write_text("[[waves]]\nchips = 2")
    with pytest.raises(CallFault, match="no tuning record"):
        BACKEND.toolchain("gfx942")
