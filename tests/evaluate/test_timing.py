from __future__ import annotations

from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.results import BATCH, time_adapters


def test_adapters_take_turns_in_full_batches_after_a_warm_up(worlds, monkeypatch):
    world = worlds.knowledge()
    test = KShotTest(*worlds.held_out(), [0, 4], seed=0)
    adapters = {name: worlds.Ridge(worlds.RidgeConfig(), world) for name in ("a", "b")}
    order = []
    for name, adapter in adapters.items():
        adapt = adapter.adapt
        monkeypatch.setattr(
            adapter, "adapt", lambda batch, states, n=name, f=adapt: (order.append(n), f(batch, states))[1]
        )
    contexts = {k: test.context(k) for k in test.shots}
    timings = time_adapters(adapters, contexts, world.states, rounds=3)
    assert "".join(order) == "ab" * 2 * (1 + 3)
    assert adapters["a"].calls == [BATCH] * 8
    assert [(t.method, t.shots) for t in timings] == [("a", 0), ("a", 4), ("b", 0), ("b", 4)]
    assert all(0 < t.low <= t.ms_per_feature <= t.high for t in timings)
