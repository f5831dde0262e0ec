"""What the figures are made of, with a clock that is told how long calls take."""

import pytest

from tilec.measure import COPIES, Plan, measure


class Fake:
    """A device whose calls are (name, seconds) pairs; each burst after the first of a call is slower by `drift`."""

    def __init__(self, graphs=True, drift=0.0, refuses=(), wrapper=0.0):
        self.graphs, self.drift, self.refuses, self.wrapper = graphs, drift, refuses, wrapper
        self.bursts, self.hosts = [], []

    def burst(self, call, launches):
        name, seconds, copies = call()
        wrapper = 0.0 if copies > 1 else self.wrapper
        self.bursts.append((name, launches * copies, copies))
        return max(seconds * copies, wrapper) * (1 + self.drift * len(self.bursts))

    def host(self, call, calls):
        self.hosts.append((call()[0], calls))
        return self.wrapper

    def captured(self, call, copies):
        name, seconds, _ = call()
        if name in self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return lambda: (name, seconds, copies)


def call(name, seconds):
    return lambda: (name, seconds, 1)


LONG = {"a": call("a", 2e-3), "b": call("b", 3e-3)}


def test_bursts_and_sustained_runs_go_forwards_and_backwards():
    clock, said = Fake(), []
    measure(LONG, clock, Plan(rounds=3), said.append)
    assert [t for t in said if t.startswith("burst")] == [
        f"burst {r} of 3: {n}" for r, order in ((1, "ab"), (2, "ba"), (3, "ab")) for n in order
    ]
    assert [t for t in said if t.startswith("sustained")] == [
        f"sustained {r} of 2: {n}" for r, order in ((1, "ab"), (2, "ba")) for n in order
    ]
    # six milliseconds a burst; sixty to warm up and three hundred sustained
    assert clock.bursts[2:8] == [(n, {"a": 3, "b": 2}[n], 1) for n in "abbaab"]
    assert clock.bursts[8:] == [(n, round(s / {"a": 2e-3, "b": 3e-3}[n]), 1) for n in "abba" for s in (60e-3, 300e-3)]


def test_a_burst_is_the_median_and_a_sustained_run_the_better_of_two():
    speeds = measure({"a": call("a", 2e-3)}, Fake(drift=0.1), Plan(rounds=3))
    assert speeds["a"].burst == pytest.approx(2e-3 * 1.3)  # bursts 2, 3 and 4
    assert speeds["a"].sustained == pytest.approx(2e-3 * 1.6)  # 6 and 8; 5 and 7 warm up


def test_short_calls_are_replayed_all_or_none():
    clock = Fake(wrapper=100e-6)
    speeds = measure({"a": call("a", 30e-6), "b": call("b", 500e-6)}, clock)
    assert all(s.graph and not s.note for s in speeds.values())
    assert speeds["a"].burst == pytest.approx(30e-6)
    assert speeds["a"].host == pytest.approx(100e-6)
    assert {copies for _, _, copies in clock.bursts[2:]} == {COPIES}
    assert not any(s.graph for s in measure(LONG, Fake()).values())
    assert not any(s.graph for s in measure({"a": call("a", 30e-6)}, Fake(graphs=False)).values())
    assert not any(s.graph for s in measure({"a": call("a", 30e-6)}, Fake(), Plan(graph=False)).values())
    assert all(s.graph for s in measure(LONG, Fake(), Plan(graph=True)).values())


def test_what_cannot_be_captured_is_timed_as_it_is_and_says_so():
    speeds = measure({"a": call("a", 30e-6), "b": call("b", 30e-6)}, Fake(refuses="b", wrapper=100e-6))
    assert speeds["a"].graph and not speeds["b"].graph
    assert speeds["b"].note == (
        "not captured, its host time counts: RuntimeError: operation not permitted when stream is capturing"
    )
    assert speeds["b"].burst == pytest.approx(100e-6)


def test_the_host_is_timed_over_no_more_work_than_a_queue_should_hold():
    clock = Fake()
    measure({"a": call("a", 20e-3), "b": call("b", 1e-3), "c": call("c", 1e-6)}, clock, Plan(graph=False))
    assert clock.hosts == [("a", 5), ("b", 50), ("c", 100)]
