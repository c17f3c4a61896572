"""A live model is a function of what arrived: no order, batching or restart shows in it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from headstart.errors import HeadstartError
from headstart.model import Headstart
from headstart.service.changes import AddFeature, Change, Observe, RemoveFeature, Writer
from headstart.service.live_model import LiveModel, LiveState, apply
from headstart.service.store import Cell, Delta, Store
from tests.faults.models import trained
from tests.states import state_of


class Log:
    """What arrived, without what was lost; and the live model that took it step by step."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.chance = kind, random.Random(seed)
        self.fitted = state_of(trained(kind))
        self.state = LiveState.of(self.fitted)
        self.cells: list[Cell] = []
        self.features: dict[str, dict] = {}
        self.rows: dict[str, None] = {}
        self.removed_features: list[str] = []
        self.removed_rows: list[str] = []

    def latest(self) -> list[Cell]:
        """Each cell once, in the order of first arrivals."""
        return list({(cell.row, cell.feature): cell for cell in self.cells}.values())

    def value(self) -> float:
        whole = {"rating": self.chance.randint(1, 5), "binary": self.chance.randint(0, 1)}
        return float(whole.get(self.kind, self.chance.gauss(0, 2)))

    def step(self, place: int) -> None:
        chance, features, rows = (
            self.chance,
            list(self.state.model.feature_store),
            list(self.state.model.rows),
        )
        what = chance.random()
        if what < 0.12 or not place:
            name, self.features[f"new {place}"] = f"new {place}", {}
            seen = [Cell(row, name, self.value()) for row in chance.sample(rows, chance.randint(0, 5))]
            delta = Delta(features={name: {}}, cells=seen)
        elif what < 0.22:
            name, self.rows[f"row {place}"] = f"row {place}", None
            seen = [Cell(name, each, self.value()) for each in chance.sample(features, chance.randint(0, 5))]
            delta = Delta(rows={name: None}, cells=seen)
        elif what < 0.27:
            name, seen = chance.choice(features), []
            self.removed_features.append(name)
            self.features.pop(name, None)
            self.cells = [cell for cell in self.cells if cell.feature != name]
            delta = Delta(removed_features=[name])
        elif what < 0.32:
            name, seen = chance.choice(rows), []
            self.removed_rows.append(name)
            self.rows.pop(name, None)
            self.cells = [cell for cell in self.cells if cell.row != name]
            delta = Delta(removed_rows=[name])
        else:
            some_rows = [*self.rows] * 3 or rows
            some = [*self.features] * 3 or features
            pairs = {
                (
                    chance.choice(chance.choice([some_rows, rows])),
                    chance.choice(chance.choice([some, features])),
                )
                for _ in range(chance.randint(1, 4))
            }
            seen = [Cell(row, name, self.value()) for row, name in sorted(pairs)]
            delta = Delta(cells=seen)
        self.cells += seen
        self.state = apply(self.state, delta)

    def at_once(self) -> LiveState:
        lost = Delta(removed_features=self.removed_features, removed_rows=self.removed_rows)
        state = apply(LiveState.of(self.fitted), lost)
        whole = Delta(features=self.features, rows=self.rows, cells=self.latest())
        return apply(state, whole)


@pytest.mark.parametrize("kind", ["rating", "binary", "real"])
@pytest.mark.parametrize("seed", range(3))
def test_step_by_step_equals_all_at_once(kind: str, seed: int) -> None:
    log = Log(kind, seed)
    for place in range(40):
        log.step(place)
    again = log.at_once()
    names, features = list(log.state.model.rows), list(log.state.model.feature_store)
    assert {*names} == {*again.model.rows}
    assert {*features} == {*again.model.feature_store}
    one, other = (Headstart.from_state(each.model).predict(names, features) for each in (log.state, again))
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-5 * other.std.max())
    np.testing.assert_allclose(one.std, other.std, rtol=1e-5)


def test_features_that_come_together_are_not_mixed_up() -> None:
    """Whatever the order of their observations: rows must read each by its own head."""
    cells = [Cell("u1", "b", 5.0), Cell("u2", "b", 5.0), Cell("u1", "a", 1.0), Cell("u2", "a", 1.0)]
    new = {"a": {}, "b": {}}
    state = apply(LiveState.of(state_of(trained("rating"))), Delta(features=new, cells=cells))
    number = state.model.feature_store.number
    held = state.model.row_store.observations(state.model.rows.position("u1"))
    assert held is not None
    assert dict(zip(held.keys.tolist(), held.values.tolist(), strict=True))[number("b")] == 5.0
    assert dict(zip(held.keys.tolist(), held.values.tolist(), strict=True))[number("a")] == 1.0


def test_a_state_never_changes() -> None:
    log = Log("rating", 7)
    before = Headstart.from_state(log.state.model).predict()
    first = log.state
    for place in range(15):
        log.step(place)
    after = Headstart.from_state(first.model).predict()
    assert np.array_equal(before.mean, after.mean)
    assert np.array_equal(before.std, after.std)


def test_a_new_feature_changes_no_other_prediction() -> None:
    state = LiveState.of(state_of(trained("rating")))
    before = Headstart.from_state(state.model).predict()
    cells = [Cell(f"u{i}", "new", 1.0 + i % 5) for i in range(7)]
    after = apply(state, Delta(features={"new": {}}))
    shown = Headstart.from_state(after.model).predict(features=before.features)
    assert np.array_equal(before.mean, shown.mean)
    after = apply(after, Delta(cells=cells))
    others = [row for row in after.model.rows if row not in {cell.row for cell in cells}]
    shown = Headstart.from_state(after.model).predict(others, before.features)
    places = [before.rows.position(row) for row in others]
    assert np.array_equal(before.mean[places], shown.mean)


def test_rows_known_only_by_new_features_are_told_apart() -> None:
    """What rows observe of added features says something about them."""
    state = LiveState.of(state_of(trained("rating")))
    known = Headstart.from_state(state.model)
    best = dict(zip(known.rows, known.predict(features=["f1"]).mean[:, 0], strict=True))
    copy = [Cell(row, "copy", float(np.clip(round(value), 1, 5))) for row, value in best.items()]
    state = apply(state, Delta(features={"copy": {}}, cells=copy))
    fans = Delta(rows={"fan": None, "foe": None}, cells=[Cell("fan", "copy", 5.0), Cell("foe", "copy", 1.0)])
    state = apply(state, fans)
    told = Headstart.from_state(state.model).predict(["fan", "foe"], ["f1"]).mean[:, 0]
    assert told[0] > told[1] + 0.2


def test_changes_that_wait_together_count_as_one_by_one(tmp_path: Path) -> None:
    """Observations are recorded and applied together: same numbers, answers, errors and predictions."""
    trained("rating").save(tmp_path / "m")
    changes: list[tuple[Change, str | None]] = [
        (Observe([("u1", "f1", 5), ("u2", "f2", 1)]), None),
        (Observe([("u3", "f1", 2)]), "key"),
        (Observe([("u3", "f1", 4), ("nobody", "f1", 4)]), None),  # an error, without effect
        (Observe([("u3", "f1", 2)]), "key"),  # a repetition
        (Observe([("u1", "f1", 3)]), "other key"),  # a correction
        (AddFeature("new", {}, {"u1": 4}), None),
        (Observe([("u2", "new", 2), ("u4", "f3", 5)]), None),
        (RemoveFeature("f3"), None),
        (Observe([("u5", "f3", 5)]), None),  # an error
        (Observe([("u5", "f1", 5)]), None),
    ]
    found, predictions = [], []
    for together in (True, False):
        live = LiveModel(Store(f"sqlite:///{tmp_path}/{together}.db"), tmp_path / "m")
        commits: list[int] = []
        writer = Writer(live, lambda _, plans, commits=commits: commits.append(len(plans)))
        if together:
            with live.lock:  # the first waits for the lock, and the others behind it
                futures = [writer.submit(change, key, b"") for change, key in changes]
        else:
            futures = []
            for change, key in changes:
                futures.append(writer.submit(change, key, b""))
                futures[-1].exception(30)
        outcomes = []
        for future in futures:
            error = future.exception(30)
            assert error is None or isinstance(error, HeadstartError)
            outcomes.append(str(error) if error else (future.result().answer, future.result().repeated))
        writer.close()
        assert len(commits) <= 2 if together else len(commits) == len(changes)
        found.append(outcomes)
        again = LiveModel(live.store, tmp_path / "m")  # from the store
        predictions += [each.snapshot.model.predict().mean for each in (live, again)]
        live.store.close()
    assert found[0] == found[1]
    for prediction in predictions[1:]:
        np.testing.assert_allclose(prediction, predictions[0], atol=1e-5)
