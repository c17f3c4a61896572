"""A model is a function of its observations: batches, processes and restarts do not show in it."""

from __future__ import annotations

import copy
import pickle
import tempfile
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.states import with_state

from headstart.core.neighbours import LocalStrengths
from headstart.model import Headstart
from headstart.model.observations import FITTED, ObservationList, reference_part, reference_size
from headstart.service.changes import AddFeature, AddRow, Observe, RemoveFeature, RemoveRow
from headstart.service.changes import Change as Written
from headstart.service.live_model import LiveModel, LiveState, apply
from headstart.service.store import Store
from headstart.table import Table

STRENGTHS = LocalStrengths(similar=(0.0,) * 9, chosen=(1.0,) * 9)
ROWS, FEATURES = 24, 8
MODELS = [
    ("rating", "factorisation", "bayes"),
    ("binary", "factorisation", "bayes"),
    ("real", "factorisation", "bayes"),
    ("mixed", "factorisation", "bayes"),
    ("rating", "factorisation", "chn-bayes"),
    ("rating", "pvae", "chn"),
    ("aging", "factorisation", "bayes"),
    ("local", "factorisation", "bayes"),
]


@cache
def fitted(kind: str, backbone: str, adapter: str) -> Headstart:
    random = np.random.default_rng(0)
    outputs = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, FEATURES))
    outputs += 0.4 * random.normal(size=outputs.shape)
    row, feature = np.nonzero(random.random(outputs.shape) < 0.4)
    stars = np.clip(np.round(3 + outputs), 1, 5)
    binary = (kind == "binary") | ((kind == "mixed") & (feature % 2 == 0))
    numbers = (
        stars if kind in ("rating", "aging", "local") else outputs * np.exp(random.normal(size=FEATURES))
    )
    values = np.where(binary, outputs[row, feature] > 0, numbers[row, feature])
    columns: dict[str, Any] = {
        "row": [f"u{i}" for i in row],
        "feature": [f"f{j}" for j in feature],
        "value": values,
    }
    kinds: Any = "rating:1:5" if kind in ("rating", "aging", "local") else kind
    if kind == "mixed":
        kinds = {f"f{j}": "binary" if j % 2 == 0 else "real" for j in range(FEATURES)}
    more: dict[str, Any] = {}
    if kind == "aging":
        columns["time"] = random.uniform(0, 100, size=len(row))
        more["half_life"] = 40.0
    quick = {"pretraining": {"epochs": 2}, "metatraining": {"epochs": 1}}
    table = Table.read(pa.table(columns), kinds=kinds, time="time" if kind == "aging" else None)
    model = Headstart(backbone=backbone, adapter=adapter, quiet=True, **quick, **more).fit(table)
    return with_state(model, local=STRENGTHS) if kind == "local" else model


def fresh(which: tuple[str, str, str]) -> Headstart:
    return copy.copy(fitted(*which))


VERBS = ["feature", "row", "row", "remove feature", "remove row"]


@dataclass
class Step:
    """A change: a verb, the name of a feature or row, and observations (row, feature, value, time)."""

    verb: str
    name: str = ""
    cells: list[tuple[str, str, float, float]] = field(default_factory=list)


@st.composite
def streams(draw: st.DrawFn, which: tuple[str, str, str]) -> list[Step]:
    """Draw changes that a model of any parts can take."""
    kind, backbone, _ = which
    removable = backbone != "pvae"  # of rows in fixed heads
    model = fresh(which)
    rows = [f"u{i}" for i in range(6) if f"u{i}" in model.rows]
    features = [f"f{j}" for j in range(4) if f"f{j}" in model.features]
    steps: list[Step] = []

    def cell(row: str, feature: str) -> tuple[str, str, float, float]:
        number = draw(st.integers(0, 4))
        binary = kind == "binary" or (kind == "mixed" and feature[0] == "f" and int(feature[1:]) % 2 == 0)
        if binary:
            value = float(number % 2)
        else:
            value = float(number - 2) if kind in ("real", "mixed") else float(number + 1)
        return row, feature, value, float(draw(st.integers(80, 140)))

    for place in range(draw(st.integers(3, 14))):
        verb = draw(
            st.sampled_from(["observe"] * 6 + ["feature", "row", "row", "remove feature", "remove row"])
        )
        if verb == "feature" and kind != "mixed":
            name = f"new {place}"
            steps.append(Step("feature", name, [cell(row, name) for row in draw(st.permutations(rows))[:3]]))
            features.append(name)
        elif verb == "row":
            name = f"late {place}"
            seen = draw(st.permutations(features))[:4]
            if backbone == "pvae":
                seen = [each for each in seen if each.startswith("f")]
            steps.append(Step("row", name, [cell(name, each) for each in seen]))
            rows.append(name)
        elif verb == "remove feature" and len(features) > 2:
            name = draw(st.sampled_from(features))
            features.remove(name)
            steps.append(Step("remove feature", name))
        elif verb == "remove row" and len(rows) > 3:
            name = draw(st.sampled_from(rows))
            if removable or name.startswith("late"):
                rows.remove(name)
                steps.append(Step("remove row", name))
        else:
            pairs = draw(
                st.lists(
                    st.tuples(st.sampled_from(rows), st.sampled_from(features)),
                    min_size=1, max_size=8, unique=True,
                )
            )  # fmt: skip
            steps.append(Step("observe", "", [cell(*pair) for pair in pairs]))
    return steps


def timed(model: Headstart, cells: list[tuple[str, str, float, float]]) -> list[tuple[Any, ...]]:
    aging = model.half_life is not None
    return [cell if aging else cell[:3] for cell in cells]


def take(model: Headstart, cells: list[tuple[str, str, float, float]]) -> None:
    """Observe by the sides that the parts of the model can update."""
    groups: dict[str, list[tuple[str, str, float, float]]] = {}
    for cell in cells:
        feature = model.feature(cell[1])
        side = "rows" if feature.fixed else "both"
        if not feature.in_backbone and model.info.backbone == "pvae":
            side = "features"
        groups.setdefault(side, []).append(cell)
    for side, group in groups.items():
        model.observe(timed(model, group), update=side)


def in_library(model: Headstart, steps: list[Step], sizes: list[int]) -> None:
    """Take a stream by the verbs of the library, in batches of these sizes."""
    turn = 0
    for step in steps:
        if step.verb == "feature":
            model.add_feature(step.name)
        elif step.verb == "row":
            model.add_rows({step.name: {}})
        elif step.verb == "remove feature":
            model.remove_feature(step.name)
        elif step.verb == "remove row":
            model.remove_row(step.name)
        cells = list(step.cells)
        while cells:
            size = sizes[turn % len(sizes)]
            turn += 1
            take(model, cells[:size])
            cells = cells[size:]


def as_written(model: Headstart, step: Step) -> Written:
    aging = model.half_life is not None
    if step.verb in ("feature", "row"):
        own = {cell[0] if step.verb == "feature" else cell[1]: cell[2] for cell in step.cells}
        time = step.cells[0][3] if aging and step.cells else None
        if step.verb == "feature":
            return AddFeature(step.name, {}, own, None, time)
        return AddRow(step.name, None, own, time)
    if step.verb == "remove feature":
        return RemoveFeature(step.name)
    if step.verb == "remove row":
        return RemoveRow(step.name)
    return Observe(timed(model, step.cells))


def one_time(steps: list[Step]) -> list[Step]:
    """Give the observations of a new row or feature one time, as the service does."""
    return [
        Step(step.verb, step.name, [(*cell[:3], step.cells[0][3]) for cell in step.cells])
        if step.verb in ("feature", "row")
        else step
        for step in steps
    ]


def assert_equal(one: Headstart, other: Headstart) -> None:
    assert {*one.rows} == {*other.rows}
    assert {*one.features} == {*other.features}
    names, features = sorted(one.rows), sorted(one.features)
    mine, theirs = one.predict(names, features), other.predict(names, features)
    scale = max(1.0, float(np.abs(theirs.mean).max()))
    np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-6, atol=2e-6 * scale)
    np.testing.assert_allclose(mine.std, theirs.std, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("which", MODELS, ids="-".join)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_model_is_a_function_of_its_observations(which: tuple[str, str, str], data: st.DataObject) -> None:
    steps = one_time(data.draw(streams(which)))
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        whole, parts = fresh(which), fresh(which)
        in_library(whole, steps, [100])
        in_library(parts, steps, sizes)
        assert_equal(whole, parts)

        place = Path(folder) / "m"
        fresh(which).save(place)
        half = len(steps) // 2
        for part in (steps[:half], steps[half:]):
            with Headstart.updating(place) as model:
                in_library(model, part, sizes)
        assert_equal(whole, Headstart.load(place))
        whole.save(Path(folder) / "whole")
        assert_equal(whole, Headstart.load(Path(folder) / "whole"))

        fresh(which).save(Path(folder) / "served")
        with Store(f"sqlite:///{folder}/s.db") as store:
            live = LiveModel(store, Path(folder) / "served")
            state: LiveState = live.snapshot.state
            for step in steps:
                written = as_written(whole, step)
                with store.writing() as connection:
                    planned = written.plan(state.model)
                    written.record(connection, planned)
                state = apply(state, planned.delta)
            assert_equal(whole, Headstart.from_state(state.model))
            live.follow()
            assert_equal(whole, live.snapshot.model)
            assert_equal(whole, LiveModel(store, Path(folder) / "served").snapshot.model)


@pytest.mark.parametrize("count", range(40))
def test_a_reference_rests_on_the_first_observations(count: int) -> None:
    size = reference_size(count)
    assert 2 * count <= 3 * size + 1
    assert size <= count
    arrivals = np.random.default_rng(count).permutation(count)
    part = reference_part(ObservationList(np.arange(count), np.zeros(count), arrivals), fitted=False)
    assert part is not None
    assert sorted(part.arrivals) == list(range(size))


@pytest.mark.parametrize(("arrived", "as_fitted"), [(0, True), (1, True), (2, False), (6, False)])
def test_a_reference_of_the_fit_stays_until_a_larger_one(arrived: int, as_fitted: bool) -> None:
    arrivals = np.append(np.full(10, FITTED), np.arange(arrived))
    part = reference_part(ObservationList(np.arange(len(arrivals)), arrivals * 1.0, arrivals), fitted=True)
    assert (part is None) == as_fitted
    assert part is None or len(part.keys) == reference_size(10 + arrived)


CHANGES = {
    "observe": lambda m: m.observe([("u1", "f1", 5), ("u3", "f3", 1)]),
    "observe one": lambda m: m.observe([("u1", "f1", 5)]),
    "observe a feature": lambda m: m.observe_feature("f1", {"u3": 2}),
    "add a feature": lambda m: m.add_feature("other", observations={"u1": 1}),
    "add rows": lambda m: m.add_rows({"late": {"f1": 4, "f2": 2}}, update="both"),
    "remove a row": lambda m: m.remove_row("u3"),
    "remove a feature": lambda m: m.remove_feature("f2"),
    "rename": lambda m: (m.rename_row("u1", "Ann"), m.rename_feature("f1", "Alien")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "saved"])
def test_copies_change_as_their_originals(change: str, way: str, tmp_path: Path) -> None:
    """A copy has memory of its own: what is written to it is read from it, and from nothing else."""
    model = fresh(MODELS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.observe([("u1", "f2", 5), ("u4", "f3", 1)])
        if way == "saved":
            model.save(tmp_path / "m")
            other = Headstart.load(tmp_path / "m")
        else:
            other = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
        before = model.predict()
        CHANGES[change](other)
        assert np.array_equal(before.mean, model.predict().mean)
        CHANGES[change](model)
    assert_equal(model, other)
