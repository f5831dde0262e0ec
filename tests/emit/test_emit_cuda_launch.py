"""The cuda launcher against a driver that only records: arguments in the kernel's order, extents, tensor maps, the counter."""

from threading import Thread
from time import sleep
from types import SimpleNamespace

import pytest
import torch
from driver_kit import STREAM, Driver
from feature_specs import CAUSAL, kernel

from tilec.backends.base import Variant, launch_half
from tilec.backends.cuda import ALIGNED, BACKEND
from tilec.backends.cuda import launch as launch_module
from tilec.backends.runtime import capture
from tilec.backends.runtime.checks import bind
from tilec.backends.runtime.ready import addresses_of
from tilec.frontend import read_text
from tilec.ir.parse import parse_program
from tilec.ir.scalars import call_scalars
from tilec.schedule import EMPTY
from tilec.signature_of import signature_of

UNITS = 5
SPEC = kernel(
    "param slope[h] : f32", "score s = s - slope[h] * (q - k)", CAUSAL,
    d="d : 64", h="h : H", head="h // 2", scale="scale 1 / 8", schedule="",
)  # fmt: skip


@pytest.fixture(scope="module")
def artifact():
    return BACKEND.compile(read_text(SPEC).kernels[0], "sm90", EMPTY, Variant((), ALIGNED))


@pytest.fixture
def machine(artifact, monkeypatch):
    return loaded(artifact, read_text(SPEC), monkeypatch)


def loaded(artifact, read, monkeypatch):
    """(driver, launcher of it on the cpu device, signature)."""
    signature = signature_of(read.kernels[0], read.source)
    driver = Driver([kind for _, kind, _, _ in artifact.metadata["arguments"]])
    monkeypatch.setattr(launch_module, "driver", driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(capture, "exchange_of_driver", lambda: driver.exchange)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=UNITS))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: driver.stream, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: driver.capturing, raising=False)
    return driver, launch_half("cuda")(artifact, signature, torch.device("cpu")), signature


B, H, M, N = 2, 4, 300, 420


def call(launcher, signature):
    """One call, with queries that are a view; what it was given, by name."""
    half = torch.bfloat16
    q = torch.empty(B, M, 2 * H, 64, dtype=half)[:, :, :H]
    k, v = (torch.empty(B, N, H // 2, 64, dtype=half) for _ in "kv")
    tensors = [q, k, v, torch.empty(H)]
    bound = bind(signature, tensors, "sm90")
    outputs = [torch.empty(o.shape, dtype=o.dtype) for o in bound.outputs]
    run = launcher.prepare(bound)
    for _ in range(2):
        run(tensors, outputs, addresses_of(tensors, outputs))
    return dict(zip(("Q", "K", "V", "slope", "O", "L"), (*tensors, *outputs), strict=True))


def test_arguments_are_in_the_kernels_order(artifact, machine):
    driver, launcher, signature = machine
    given = call(launcher, signature)
    program = parse_program(artifact.sources["program.tile_ir"])
    sizes = call_scalars(program, {"B": B, "H": H, "M": M, "N": N, "SMS": UNITS})
    assert {"tiles", "section"} <= {of for _, kind, of, _ in artifact.metadata["arguments"] if kind == "extent"}
    (first, again) = driver.launches
    assert first == again
    counter = launcher.kernel.counters.streams[STREAM]
    values = first[-1]
    for (name, kind, of, dimension), value in zip(artifact.metadata["arguments"], values, strict=True):
        match kind:
            case "map":
                assert value[2] == given[of].data_ptr()
            case "pointer":
                assert value == (counter if artifact.metadata["tensors"][of][0] == "counter" else given[of].data_ptr())
            case "stride":
                assert value == given[of].stride(dimension), name
            case "extent":
                assert value == sizes[of], name
    kinds = {of: kind for _, kind, of, _ in artifact.metadata["arguments"] if kind in ("map", "pointer")}
    assert kinds.keys() == {*given, "counter"}
    assert {n for n, kind in kinds.items() if kind == "map"} == {"Q", "K", "V"}


def test_a_launch_has_a_block_for_each_multiprocessor(artifact, machine):
    driver, launcher, signature = machine
    call(launcher, signature)
    grid, threads, shared, stream, _ = driver.launches[0]
    assert grid == (UNITS, 1, 1)  # fewer than the 2 * 2 * 4 tiles
    assert threads == (artifact.metadata["threads"], 1, 1) and shared == artifact.metadata["shared"]
    assert stream == STREAM


def counters(artifact, driver):
    """The counter of each launch."""
    at = [
        artifact.metadata["tensors"][of][0] if kind == "pointer" else ""
        for _, kind, of, _ in artifact.metadata["arguments"]
    ]
    return [values[at.index("counter")] for *_, values in driver.launches]


def test_launches_that_may_run_together_have_counters_of_their_own(artifact, machine):
    driver, launcher, signature = machine
    call(launcher, signature)
    driver.stream += 1
    call(launcher, signature)
    driver.capturing = True
    call(launcher, signature)
    mine, again, other, same, graph, next_graph = counters(artifact, driver)
    assert mine == again and other == same and len({mine, other, graph, next_graph}) == 4


def test_counters_start_at_0_and_never_run_out(artifact, machine):
    driver, launcher, signature = machine
    kept = launcher.kernel.counters
    driver.capturing, kept.free = True, kept.free[:3]
    for _ in range(2):
        call(launcher, signature)
    assert len(set(counters(artifact, driver))) == 4 and len(driver.memory) == 2
    assert not any(any(m) for m in driver.memory)


def test_nothing_is_launched_for_no_rows(artifact, machine):
    driver, launcher, signature = machine
    q, k = (torch.empty(0, n, H // g, 64, dtype=torch.bfloat16) for n, g in ((M, 1), (N, 2)))
    bound = bind(signature, [q, k, k, torch.empty(H)], "sm90")
    assert bound.empty == "outputs"
    tensors, outputs = [q, k, k, torch.empty(H)], [torch.empty(o.shape, dtype=o.dtype) for o in bound.outputs]
    launcher.prepare(bound)(tensors, outputs, addresses_of(tensors, outputs))
    assert not driver.launches


def test_maps_are_made_once_and_span_the_whole_tensor(artifact, machine):
    driver, launcher, signature = machine
    given = call(launcher, signature)
    assert len(driver.maps) == 3
    found = {next(n for n, t in given.items() if t.data_ptr() == m[2]): m for m in driver.maps}
    dims, steps, box = found["Q"][3:6]
    assert dims == [64, M, 1, H, B]
    assert steps == [2 * H * 64 * 2, 128, 64 * 2, M * 2 * H * 64 * 2]
    assert box == [64, 64, 1, 1, 1]
    dims, _, box = found["K"][3:6]
    assert dims == [64, N, 1, H // 2, B] and box == [64, artifact.metadata["tile"]["TK"], 1, 1, 1]


def laid_out(signature):
    """Tensors of one call and their outputs, at new addresses."""
    half = torch.bfloat16
    q, k, v = (torch.empty(B, n, h, 64, dtype=half) for n, h in ((M, H), (N, H // 2), (N, H // 2)))
    tensors = [q, k, v, torch.empty(H)]
    bound = bind(signature, tensors, "sm90")
    return bound, tensors, [torch.empty(o.shape, dtype=o.dtype) for o in bound.outputs]


def addresses_in(artifact, values):
    """Address of each tensor in what a launch read, by name."""
    found = zip(artifact.metadata["arguments"], values, strict=True)
    return {of: v[2] if kind == "map" else v for (_, kind, of, _), v in found if kind in ("map", "pointer")}


def test_other_addresses_are_written_into_the_same_arguments(artifact, machine):
    driver, launcher, signature = machine
    sets = [laid_out(signature) for _ in range(3)]
    sets.append((sets[0][0], [*sets[1][1][:2], *sets[2][1][2:]], sets[0][2]))
    run = launcher.prepare(sets[0][0])
    for _, tensors, outputs in (*sets, *sets):
        run(tensors, outputs, addresses_of(tensors, outputs))
        given = dict(zip(("Q", "K", "V", "slope", "O", "L"), addresses_of(tensors, outputs), strict=True))
        assert given.items() <= addresses_in(artifact, driver.launches[-1][-1]).items()
    assert len(driver.maps) == 3, "a map is made once"


def test_maps_of_residue_classes_keep_their_first_positions(monkeypatch):
    spec = read_text(
        kernel(
            "mask (q - k) % 3 == 0 and k <= q",
            d="d : 64",
            h="h : 2",
            head="h",
            scale="scale 1 / 8",
            schedule="",
            lse="",
        )
    )
    made = BACKEND.compile(spec.kernels[0], "sm90", EMPTY, Variant((), ALIGNED))
    driver, launcher, signature = loaded(made, spec, monkeypatch)
    boxes = {name: box for name, box in made.metadata["boxes"].items() if box["tensor"] == "K"}
    assert sorted(b["first"] for b in boxes.values()) == [0, 1, 2]
    names = [name for name, *_ in made.metadata["arguments"]]
    q, *keys = (torch.empty(2, 40, 2, 64, dtype=torch.bfloat16) for _ in range(4))
    bound = bind(signature, [q, keys[0], keys[0]], "sm90")
    run = launcher.prepare(bound)
    for k in keys:
        tensors, outputs = [q, k, keys[0]], [torch.empty_like(q)]
        run(tensors, outputs, addresses_of(tensors, outputs))
        held = dict(zip(names, driver.launches[-1][-1], strict=True))
        assert {n: held[n][2] - k.data_ptr() for n in boxes} == {n: b["first"] * 2 * 64 * 2 for n, b in boxes.items()}


def test_a_map_that_the_driver_refuses_leaves_no_trace(artifact, machine):
    driver, launcher, signature = machine
    bound, tensors, outputs = laid_out(signature)
    run, right = launcher.prepare(bound), addresses_of(tensors, outputs)
    run(tensors, outputs, right)
    for wrong in ((right[0] + 16, right[1] + 2, *right[2:]), (right[0], right[1], right[2] + 2, *right[3:])):
        with pytest.raises(RuntimeError, match="invalid argument"):
            run(tensors, outputs, wrong)
        run(tensors, outputs, right)
        assert driver.launches[-1] == driver.launches[0]
    assert len(driver.launches) == 3


def test_threads_launch_with_their_own_addresses(artifact, machine, monkeypatch):
    driver, launcher, signature = machine
    sets = [laid_out(signature) for _ in range(4)]
    run, replace = launcher.prepare(sets[0][0]), driver.cuTensorMapReplaceAddress
    monkeypatch.setattr(driver, "cuTensorMapReplaceAddress", lambda *a: sleep(1e-4) or replace(*a), raising=False)

    def work(tensors, outputs):
        for _ in range(10):
            run(tensors, outputs, addresses_of(tensors, outputs))

    threads = [Thread(target=work, args=s[1:]) for s in sets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    calls = [addresses_of(*s[1:]) for s in sets]
    seen = [addresses_in(artifact, values) for *_, values in driver.launches]
    found = [calls.index(tuple(s[n] for n in ("Q", "K", "V", "slope", "O", "L"))) for s in seen]
    assert sorted(found) == sorted([0, 1, 2, 3] * 10)


def test_a_map_of_single_panels_ends_with_the_rows(monkeypatch):
    driver = Driver([])
    monkeypatch.setattr(launch_module, "driver", driver)
    t = torch.empty(B, M, 3, H, 72, dtype=torch.bfloat16)[:, :, 1]
    launch_module.tensor_map(
        t,
        "bf16",
        {"tensor": "Q", "axis": 1, "rows": 64, "columns": 64, "single": True, "heads": [], "period": 1, "first": 0},
    )
    dims, steps, box = driver.maps[0][3:6]
    assert dims == [72, M, H, B, 1]
    assert steps == [3 * H * 72 * 2, 72 * 2, M * 3 * H * 72 * 2, 16]
    assert box == [64, 64, 1, 1, 1]


def test_a_capture_sees_nothing_of_the_memory_of_counters(artifact, machine):
    driver, launcher, signature = machine
    launcher.kernel.counters.free.clear()
    driver.capturing = True
    call(launcher, signature)
    assert driver.cleared == driver.awaited == ["stream 0"] * 2, "cleared when it is used, by no stream of the caller"
    assert driver.mode == 0
    driver.capturing, driver.stream = False, STREAM + 1
    call(launcher, signature)
    first, second, eager, same = counters(artifact, driver)
    assert len({first, second, eager}) == 3 and eager == same


def test_a_kernel_is_loaded_in_a_capture(artifact, machine):
    driver, _, signature = machine
    driver.capturing = True
    with capture.loading(torch.device("cuda"), "f"):
        launcher = launch_half("cuda")(artifact, signature, torch.device("cpu"))
    call(launcher, signature)
    assert driver.mode == 0 and len(set(counters(artifact, driver))) == 2
    with pytest.raises(AssertionError, match="not permitted"):
        launch_half("cuda")(artifact, signature, torch.device("cpu"))


def test_a_new_thread_gets_the_devices_context(artifact, machine):
    driver, launcher, signature = machine
    thread = Thread(target=call, args=(launcher, signature))
    thread.start()
    thread.join()
    assert len(driver.launches) == 2 and len(driver.contexts) == 2


def test_a_map_of_groups_has_heads_before_positions(monkeypatch):
    driver = Driver([])
    monkeypatch.setattr(launch_module, "driver", driver)
    t = torch.empty(B, M, 3, 8, 128, dtype=torch.bfloat16)[:, :, 1]
    box = {
        "tensor": "Q",
        "axis": 1,
        "rows": 64,
        "columns": 128,
        "single": False,
        "heads": [2, 4],
        "period": 1,
        "first": 0,
    }
    launch_module.tensor_map(t, "bf16", box)
    dims, steps, tile = driver.maps[0][3:6]
    assert dims == [64, 8, M, 2, B]
    assert steps == [128 * 2, 3 * 8 * 128 * 2, 128, M * 3 * 8 * 128 * 2]
    assert tile == [64, 4, 16, 2, 1]
