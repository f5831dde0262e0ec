"""LDS and vector memory: widths, addresses, range checks, LDS-DMA, atomics, bank cycles."""

import numpy as np
import pytest
from lane_kit import Lane, program

from tilec.targets.gfx942.emulator import banks
from tilec.targets.gfx942.emulator.memory import Memory

RNG = np.random.default_rng(4)
L = np.arange(64)
RAW = 0x00020000


def with_buffer(array, **registers):
    lane = Lane(lds=4096)
    lane.base = lane.memory.place("data", array)
    lane.wave.put64(4, lane.base)
    lane.wave.s[6:8] = [array.nbytes, RAW]
    return lane.set(**registers)


def kinds(lane):
    return [f.kind for f in lane.log.findings.values()]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_lds_widths(size):
    data = RNG.integers(0, 2**32, (size // 4, 64), dtype=np.uint32)
    lane = Lane(lds=2048)
    lane.wave.v[4 : 4 + size // 4] = data
    at = RNG.permutation(64).astype(np.uint32) * size
    span = {4: "4", 8: "[4:5]", 16: "[4:7]"}[size]
    lane.set(v1=at).run(
        f"ds_write_b{8 * size} v1, v{span} offset:64",
        f"ds_read_b{8 * size} v{span.replace('4', '8').replace('5', '9').replace('7', '11')}, v1 offset:64",
    )
    assert (lane.wave.v[8 : 8 + size // 4] == data).all()
    assert lane.group.lds.words[(at[5] + 64) // 4] == data[0, 5]


def test_lds_pairs_and_parts_of_dwords():
    lane = Lane(lds=65536)
    lane.set(v1=L.astype(np.uint32) * 4, v2=L.astype(np.uint32) + 1, v3=L.astype(np.uint32) + 500)
    lane.run("ds_write2st64_b32 v1, v2, v3 offset0:1 offset1:4", "ds_read2st64_b32 v[4:5], v1 offset0:4 offset1:1")
    assert (lane.vector(4) == L + 500).all() and (lane.vector(5) == L + 1).all()
    lane.set(v1=L.astype(np.uint32) * 2, v6=0xFFFF8001).run(
        "ds_write_b16 v1, v6", "ds_read_u16 v7, v1", "ds_read_i16 v8, v1"
    )
    assert (lane.vector(7) == 0x8001).all() and (lane.vector(8) == 0xFFFF8001).all()
    lane.set(v9=0xAAAABBBB).run("ds_read_u16_d16_hi v9, v1", "ds_read_u8 v10, v1 offset:1")
    assert (lane.vector(9) == 0x8001BBBB).all() and (lane.vector(10) == 0x80).all()


def test_a_pair_is_read_with_the_address_that_it_overwrites():
    lane = Lane(lds=1024).set(v1=L.astype(np.uint32) * 4, v2=77)
    lane.run("ds_write_b32 v1, v2", "ds_write_b32 v1, v1 offset:256", "ds_read2_b32 v[1:2], v1 offset1:64")
    assert (lane.vector(1) == 77).all() and (lane.vector(2) == L * 4).all()


def test_global_addresses():
    data = RNG.integers(0, 2**32, 1024, dtype=np.uint32)
    lane = with_buffer(data, v1=L.astype(np.uint32) * 16)
    lane.run("global_load_dwordx4 v[8:11], v1, s[4:5] offset:32", "global_load_ubyte v12, v1, s[4:5] offset:3")
    assert np.array_equal(lane.wave.v[8:12].T, data.reshape(-1, 4)[2:66])
    assert (lane.vector(12) == data[::4][:64] >> 24).all()
    lane.run("v_mov_b32_e32 v2, s4", "v_mov_b32_e32 v3, s5", "global_store_short v[2:3], v8, off offset:2")
    assert data.view(np.uint16)[1] == lane.vector(8)[63] & 0xFFFF
    lane.run("global_load_dword v4, v1, s[4:5] offset:-4")
    assert lane.vector(4)[0] == 0 and kinds(lane) == ["bounds"]
    (finding,) = lane.log.findings.values()
    assert "byte -4 of buffer `data`" in finding.message


def test_a_buffer_checks_its_range_a_dword_at_a_time():
    data = np.arange(1, 65, dtype=np.uint32)
    lane = with_buffer(data, v1=L.astype(np.uint32) * 8)
    lane.wave.s[6] = 36
    lane.run("buffer_load_dwordx4 v[8:11], v1, s[4:7], 0 offen")
    flat = np.where(np.arange(200) < 9, np.arange(1, 201), 0)
    assert np.array_equal(lane.wave.v[8:12].T, np.stack([flat[2 * n : 2 * n + 4] for n in range(64)]))
    lane.set(v8=9999).run("s_mov_b32 s9, 16", "buffer_store_dword v8, v1, s[4:7], s9 offen offset:4")
    changed = np.flatnonzero(data != np.arange(1, 65))
    assert changed.tolist() == [5, 7, 9, 11], "the scalar offset moves the address, not the check"
    assert kinds(lane) == []


def test_dma_puts_lanes_side_by_side():
    data = RNG.integers(0, 2**32, 64, dtype=np.uint32)
    turn = RNG.permutation(64)
    lane = with_buffer(data, v1=turn.astype(np.uint32) * 4).set(m0=256)
    lane.run("buffer_load_dword v1, s[4:7], 0 offen offset:0 lds", "s_waitcnt vmcnt(0)")
    assert (lane.group.lds.words[64:128] == data[turn]).all()


def test_atomics():
    data = np.zeros(4, np.float32)
    lane = with_buffer(data, v1=L.astype(np.uint32) % 4 * 4, v2=np.full(64, 0.5, np.float32))
    lane.run("global_atomic_add_f32 v1, v2, s[4:5]", "buffer_atomic_add_f32 v2, v1, s[4:7], 0 offen")
    assert data.tolist() == [16.0] * 4
    counts = np.zeros(1, np.uint32)
    lane = with_buffer(counts, v1=0, v2=1).run("global_atomic_add v3, v1, v2, s[4:5] sc0")
    assert counts[0] == 64 and sorted(lane.vector(3).tolist()) == L.tolist()


def test_atomics_of_lds_and_their_races():
    at = L.astype(np.uint32) % 4 * 4
    lane = Lane(lds=64, waves=2).set(v1=at, v2=np.full(64, 0.5, np.float32), v3=1)
    lane.run("ds_add_f32 v1, v2", "ds_add_rtn_u32 v4, v1, v3 offset:16")
    assert (lane.group.lds.words[:4].view(np.float32) == 8).all() and (lane.group.lds.words[4:8] == 16).all()
    assert sorted(lane.vector(4)[::4].tolist()) == list(range(16))
    lane.group.waves[1].u[1][...] = at
    lane.group.waves[1].u[2][...] = lane.wave.u[2]
    lane.run("ds_add_f32 v1, v2", wave=1)
    assert kinds(lane) == [], "atomics of two waves"
    lane.run("ds_read_b32 v5, v1", wave=1)
    assert kinds(lane) == ["race"], "what the atomics of another wave write, read without a barrier"


def test_scratch_is_each_lanes_own():
    lane = Lane().set(v1=L.astype(np.uint32))
    lane.wave.scratch = np.zeros((8, 64), np.uint32)
    lane.run("scratch_store_dword off, v1, off offset:12", "scratch_load_dwordx2 v[4:5], off, off offset:8")
    assert (lane.vector(5) == L).all() and (lane.vector(4) == 0).all()
    lane.run("scratch_store_dword off, v1, off offset:32")
    assert kinds(lane) == ["bounds"]


def test_arrays_of_any_order_are_buffers_and_views_with_gaps_are_not():
    memory = Memory()
    memory.place("transposed", np.zeros((4, 6)).T)
    with pytest.raises(ValueError, match="gaps"):
        memory.place("gaps", np.zeros((4, 6))[:, :3])


EVERY = np.ones(64, bool)


def cycles(addresses, size, writes=False, lanes=EVERY):
    return banks.cycles(np.asarray(addresses, np.uint32), lanes, size, writes=writes)


def test_bank_cycles_without_conflicts():
    for size, ideal in ((4, 2), (8, 4), (16, 8)):
        assert cycles(L * size, size) == cycles(L * size, size, writes=True) == banks.ideal(size, writes=False) == ideal
    assert cycles(L * 0, 4) == 2, "one dword goes to all lanes at once"


def test_bank_conflicts():
    assert cycles(L * 128, 4) == 64, "every lane in one bank"
    assert cycles(L * 8, 4) == 4, "every other bank, two lanes each"
    rows = (L % 32) * 256 + (L // 32) * 16
    assert cycles(rows, 16) == 64, "a column of 256-byte rows"
    swizzled = (L % 32) * 256 + (((L // 32) ^ (L % 8)) * 16)
    assert cycles(swizzled, 16) == 8
    halves = np.where(L % 8 < 4, L, L ^ 16) * 16  # conflicts if 8 lanes in a row were served together
    assert cycles(halves, 16) == 8
    assert cycles(L * 128, 4, lanes=L < 32) == 33, "the empty group still takes its turn"


def test_transposed_values_are_written_and_read_without_conflicts():
    d4, kv4 = L % 32, L // 32
    for d in range(4):
        row = 4 * d4 + d
        unit = kv4 ^ (row % 16) ^ (row // 16 % 4)
        assert cycles(row * 128 + unit * 8, 8, writes=True) == 4
    row, half = L % 32, L // 32
    assert cycles(row * 128 + ((2 + half) ^ (row % 16) ^ (row // 16 % 4)) * 8, 8) == 4


def test_a_program_reports_its_bank_cycles():
    def set_up(w):
        w.u[1][...] = L * 128

    _, log = program(
        "ds_write_b32 v1, v2", "ds_read_b32 v3, v1", "s_waitcnt lgkmcnt(0)", "s_endpgm", lds=8192, set_up=set_up
    )
    assert log.banks == {0: [1, 64, 2], 4: [1, 64, 2]}
