"""Calls in a captured graph: code is loaded with the thread's capture mode relaxed, and what cannot be recorded is refused
before it spoils the graph."""

from contextlib import contextmanager

import pytest
import runtime_kit as kit
import torch

from tilec.backends.runtime import capture
from tilec.backends.runtime import kernel as kernel_module
from tilec.dsl.faults import CallFault, TargetFault

GPU = torch.device("cuda", 0)


@pytest.fixture
def modes(monkeypatch):
    """The capture modes of this thread, from the default on."""
    seen = [0]

    def exchange(mode):
        seen.append(mode)
        return seen[-2]

    monkeypatch.setattr(capture, "exchange_of_driver", lambda: exchange)
    return seen


@pytest.fixture
def captured(monkeypatch):
    monkeypatch.setattr(capture, "capturing", lambda device: True)


def test_the_mode_is_relaxed_while_code_is_loaded(modes):
    with capture.loading(GPU, "f"), capture.loading(GPU, "f"):
        assert modes[-1] == capture.RELAXED
    with pytest.raises(TargetFault), capture.loading(GPU, "f"):
        raise TargetFault("E0917", "ptxas fails")
    assert modes == [0, 2, 2, 2, 0, 2, 0]


def test_nothing_is_asked_of_a_driver_for_cpu_tensors(modes):
    with capture.loading(torch.device("cpu"), "f"):
        pass
    assert modes == [0]


def test_all_of_the_loading_is_inside(monkeypatch):
    inside = []

    @contextmanager
    def loading(device, kernel):
        inside.append(kernel)
        yield
        inside.append("end")

    class Launcher(kit.Doing):
        def prepare(self, bound):
            inside.append("prepare")
            return super().prepare(bound)

    class Machine(kit.Machine):
        def artifact(self, *what):
            inside.append("artifact")
            return super().artifact(*what)

    monkeypatch.setattr(kernel_module, "loading", loading)
    kernel = kit.make_kernel(
        monkeypatch, kit.CAUSAL, machine=Machine(), launcher=lambda *_: inside.append("launcher") or Launcher()
    )
    for _ in range(2):
        kernel(*kit.dense())
    assert inside == ["causal", "artifact", "launcher", "prepare", "end"]


def test_a_driver_that_cannot_load_meanwhile_says_so_first(monkeypatch, captured):
    monkeypatch.setattr(capture, "exchange_of_driver", lambda: None)
    causal = kit.make_kernel(monkeypatch, kit.CAUSAL)
    with pytest.raises(CallFault) as caught:
        causal(*kit.dense())
    assert not causal.machine.variants
    assert str(caught.value) == (
        "error[E1027]: this call of `causal` is captured in a graph, and its code is not loaded yet, which cannot be done "
        "meanwhile on this driver\n"
        "    = call it once before the capture, with tensors like these"
    )
    monkeypatch.setattr(capture, "capturing", lambda device: False)
    causal(*kit.dense())
    monkeypatch.setattr(capture, "capturing", lambda device: True)
    assert causal(*kit.dense())[0].any()


def test_values_are_not_read_in_a_capture(monkeypatch):
    documents = kit.make_kernel(monkeypatch, kit.DOCUMENTS)
    q, k = torch.zeros(1, 2, 2, 8), torch.zeros(1, 2, 2, 8)
    doc = torch.zeros(1, 2, dtype=torch.int32)
    documents(q, k, k, doc)
    monkeypatch.setattr(capture, "capturing", lambda device: True)
    with pytest.raises(CallFault) as caught:
        documents(q, k, k, doc)
    assert caught.value.code == "E1027" and "TILEC_DEBUG" in str(caught.value)


def test_a_seed_of_the_host_is_not_recorded(monkeypatch):
    dropped = kit.make_kernel(monkeypatch, kit.DROPPED)
    q, k, v = kit.dense()
    dropped(q, k, v, seed=1)
    monkeypatch.setattr(capture, "capturing", lambda device: True)
    with pytest.raises(CallFault) as caught:
        dropped(q, k, v, seed=1)
    assert caught.value.code == "E1027" and "on the device" in str(caught.value)
    assert dropped(q, k, v, rng=torch.tensor([1, 0]))[0].any()
    assert dropped(q, k, v)[0].any()


def test_a_machine_without_the_driver_has_no_such_mode():
    capture.exchange_of_driver.cache_clear()
    if not torch.cuda.is_available():
        assert capture.exchange_of_driver() is None
    assert not capture.capturing(torch.device("cpu"))
