"""Every verb of a model, for models of each kind. Each verb starts from the model as it was fitted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from headstart import Headstart, InputError, SurpriseWarning, Table
from headstart.scoring import score
from tests.references.cases import model_of, numbers

MODELS = ("ratings", "binary", "reals", "mixed", "dated")
WHEN = "2024-01-15"  # after all observations of the dated model


def time_of(model: Headstart) -> dict[str, str]:
    """Give the time of new observations, where a model needs one."""
    return {} if model.half_life is None else {"time": WHEN}


def ends(model: Headstart, feature: str) -> tuple[float, float]:
    """Give the lowest and the highest value that was observed of a feature."""
    values = model.feature(feature).observations.values()
    return min(values), max(values)


def some(model: Headstart, features: list[str]) -> dict[str, Any]:
    """Predict three rows at some features."""
    return numbers(model.predict(list(model.rows)[:3], features))


def triples(model: Headstart, count: int) -> list[tuple[str, str, float]]:
    """Give observations of several rows and features, some of which were observed before."""
    rows, features = list(model.rows), model.features
    return [(rows[2 * i], features[i], ends(model, features[i])[1]) for i in range(count)]


def add_feature(model: Headstart, folder: Path) -> Any:
    """Add one feature without observations."""
    model.add_feature("new")
    return {"shown": repr(model.feature("new")), "predicted": some(model, ["new"])}


def add_features(model: Headstart, folder: Path) -> Any:
    """Add features of each kind in the model, with metadata and observations."""
    given = {}
    for feature in model.features[:3]:
        known, (low, high) = model.feature(feature), ends(model, feature)
        observations = {model.rows[3]: high, model.rows[4]: low}
        given[f"like {feature}"] = {
            "kind": str(known.kind),
            "metadata": dict(known.metadata),
            "observations": observations,
        }
    model.add_features(given)
    return {"shown": [repr(model.feature(name)) for name in given], "predicted": some(model, list(given))}


def observed(model: Headstart, what: Any, *values: Any, **settings: Any) -> Any:
    """Observe, and give what is said of it, what is predicted then and how stale the model is."""
    verb = model.observe_feature if values else model.observe
    said = verb(what, *values, **settings)
    return {
        "said": {"observations": said.observations, "features": said.features, "rows": said.rows},
        "text": str(said),
        "predicted": some(model, model.features[:3]),
        "staleness": str(model.staleness()),
    }


def observe_one_triple(model: Headstart, folder: Path) -> Any:
    """Observe one cell."""
    return observed(model, triples(model, 1), **time_of(model))


def observe_two_triples(model: Headstart, folder: Path) -> Any:
    """Observe two cells."""
    return observed(model, triples(model, 2), **time_of(model))


def observe_rows_only(model: Headstart, folder: Path) -> Any:
    """Observe two cells and update only the rows."""
    return observed(model, triples(model, 2), update="rows", **time_of(model))


def observe_a_named_feature(model: Headstart, folder: Path) -> Any:
    """Observe one feature at two rows."""
    feature = model.features[1]
    low, high = ends(model, feature)
    return observed(model, feature, {model.rows[0]: high, model.rows[5]: low}, **time_of(model))


def observe_a_frame(model: Headstart, folder: Path) -> Any:
    """Observe a frame with columns of other names."""
    rows, features, values = zip(*triples(model, 3), strict=True)
    frame = {"user": rows, "film": features, "stars": values}
    time = {}
    if model.half_life is not None:
        frame["when"], time = [WHEN, "2023-06-01", WHEN], {"time": "when"}
    return observed(model, pa.table(frame), row="user", feature="film", value="stars", **time)


def observe_a_surprise(model: Headstart, folder: Path) -> Any:
    """Observe a value that is far off, where the kind allows one."""
    feature = model.features[-1]
    low, high = ends(model, feature)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SurpriseWarning)
            found = observed(model, feature, {model.rows[0]: high + 1000 * (high - low)}, **time_of(model))
    except InputError as error:
        return str(error)
    return found | {"warnings": [str(warning.message) for warning in caught]}


def add_rows(model: Headstart, folder: Path) -> Any:
    """Add a row with two observations and a row without any."""
    first, second = model.features[:2]
    given = {"guest": {first: ends(model, first)[1], second: ends(model, second)[0]}, "nobody": {}}
    model.add_rows(given)
    return {"rows": len(model.rows), "predicted": numbers(model.predict(list(given), model.features[:4]))}


def add_rows_that_teach(model: Headstart, folder: Path) -> Any:
    """Add a row whose observations also refine features."""
    first, second = model.features[:2]
    model.add_rows({"guest": {first: ends(model, first)[1], second: ends(model, second)[0]}}, update="both")
    return some(model, [first, second, model.features[2]])


def remove_row(model: Headstart, folder: Path) -> Any:
    """Remove a row with its observations."""
    model.remove_row(model.rows[7])
    return {"rows": len(model.rows), "predicted": some(model, model.features[:3])}


def remove_feature(model: Headstart, folder: Path) -> Any:
    """Remove a feature, and ask a row that is not kept."""
    model.remove_feature(model.features[0])
    first = model.features[0]
    stranger = {"x": {first: ends(model, first)[1]}}
    return {"features": model.features, "predicted": numbers(model.predict(stranger, model.features[:3]))}


def rename(model: Headstart, folder: Path) -> Any:
    """Rename a row and a feature."""
    model.rename_row(model.rows[0], "somebody")
    model.rename_feature(model.features[0], "something")
    found = numbers(model.predict(["somebody"], ["something"]))
    return {"rows": list(model.rows)[:2], "features": model.features, "predicted": found}


def predict(model: Headstart, folder: Path) -> Any:
    """Predict rows and features by name, with quantiles, probabilities and the long form."""
    found = model.predict(list(model.rows)[:2], model.features[:3])
    return {
        "numbers": numbers(found),
        "quantiles": [found.quantile(quantile) for quantile in (0.05, 0.5, 0.8)],
        "above": [found.probability_above(value) for value in (0.5, 3.2)],
        "long": found.to_arrow(0.5).to_pydict(),
        "shown": repr(found),
    }


def predict_pairs(model: Headstart, folder: Path) -> Any:
    """Predict single cells by a saved model."""
    model.save(folder / "model")
    rows, features, _ = zip(*triples(model, 4), strict=True)
    pairs = pa.table({"row": rows, "feature": features})
    return scored(folder, pairs=pairs)


def predict_best(model: Headstart, folder: Path) -> Any:
    """Predict the best features of rows by a saved model."""
    model.save(folder / "model")
    return scored(folder, rows=list(model.rows)[:3], top=2, mixed_kinds=True)


def scored(folder: Path, **question: Any) -> Any:
    """Score with a saved model and read all that was written."""
    done = score(folder / "model", folder / "out", quiet=True, **question)
    parts = sorted((folder / "out").glob("*.parquet"))
    lines = [pyarrow.parquet.read_table(part).to_pydict() for part in parts]
    return {"said": str(done).replace(str(folder), "FOLDER"), "lines": lines}


def ranked(ranking: Any) -> Any:
    """Give all that a ranking holds."""
    return {"of": ranking.of, "by": ranking.by, "shown": repr(ranking)} | ranking.to_arrow().to_pydict()


def recommend(model: Headstart, folder: Path) -> Any:
    """Recommend features in each way, to one row, to several and to a stranger."""
    first = model.features[0]
    ways = {by: ranked(model.recommend(model.rows[0], 3, by=by, mixed_kinds=True))
            for by in ("mean", "upper", "information")}  # fmt: skip
    several = model.recommend_many(list(model.rows)[:2], 2, exclude_observed=False, mixed_kinds=True)
    stranger = model.recommend({first: ends(model, first)[1]}, 3, mixed_kinds=True)
    return {
        **ways,
        "several": {row: ranked(ranking) for row, ranking in several.items()},
        "stranger": ranked(stranger),
    }


def audience(model: Headstart, folder: Path) -> Any:
    """Find the rows for a feature, in each way."""
    feature = model.features[2]
    return {by: ranked(model.audience(feature, 4, exclude_observed=False, by=by))
            for by in ("mean", "upper", "information")}  # fmt: skip


def suggest(model: Headstart, folder: Path) -> Any:
    """Suggest rows to observe, of an added feature and of some rows only."""
    model.add_feature("new", observations={model.rows[0]: ends(model, model.features[0])[1]})
    return {"all": model.suggest("new", n=5), "some": model.suggest("new", 3, list(model.rows)[:6])}


def similar(model: Headstart, folder: Path) -> Any:
    """Find features that are alike."""
    found = model.similar(model.features[0], 4)
    return {"shown": repr(found)} | found.to_arrow().to_pydict()


def explain(model: Headstart, folder: Path) -> Any:
    """Explain a prediction of a row of the model and of a stranger."""
    first, second = model.features[:2]
    found = {
        "known": model.explain(model.rows[1], second),
        "stranger": model.explain({first: ends(model, first)[1]}, second),
    }
    return {
        name: {"baseline": each.baseline, "output": each.output, "mean": each.mean, "unit": each.unit,
               "shown": str(each), **each.to_arrow().to_pydict()}
        for name, each in found.items()
    }  # fmt: skip


def evaluate(model: Headstart, folder: Path) -> Any:
    """Measure the model on new features, which are old ones under other names, and on its own cells."""
    table = model.table()
    long = {
        "row": [table.rows[i] for i in table.row_index],
        "feature": [f"new {table.features[j]}" for j in table.feature_index],
        "value": table.values,
    }
    kinds = {f"new {name}": str(kind) for name, kind in zip(table.features, table.kinds, strict=True)}
    found = model.evaluate(Table.read(pa.table(long), kinds=kinds, quiet=True), shots=(0, 2))
    runs = [run.model_dump(exclude={"ms_per_feature"}) for run in found.runs]
    for run in runs:
        if run["metric"].startswith("auroc"):  # it counts pairs: rounding may order two close predictions
            run["value"] = round(run["value"], 3)
    return {"runs": runs, "data": found.data, "settings": found.settings}


def info(model: Headstart, folder: Path) -> Any:
    """Give what a model says of itself."""
    feature = model.feature(model.features[1])
    return {
        "info": str(model.info),
        "metadata": model.info.metadata,
        "model": repr(model),
        "feature": repr(feature),
        "metadata of a feature": feature.metadata,
        "staleness": str(model.staleness()),
    }


def export(model: Headstart, folder: Path) -> Any:
    """Give back the table with what was added and observed."""
    first = model.features[0]
    low, high = ends(model, first)
    model.add_rows({"guest": {first: high}})
    model.add_feature("new", kind=str(model.feature(first).kind), observations={"guest": low})
    model.observe(triples(model, 2), **time_of(model))
    table = model.table()
    return {
        "description": table.describe(),
        "values": table.values,
        "row_index": table.row_index,
        "feature_index": table.feature_index,
        "times": table.times,
        "metadata": None if table.metadata is None else [str(line) for line in table.metadata.to_pylist()],
    }


def refit(model: Headstart, folder: Path) -> Any:
    """Fit anew after a change."""
    model.add_rows({"guest": {model.features[0]: ends(model, model.features[0])[1]}})
    model.refit()
    return numbers(model.predict(["guest", model.rows[0]], model.features[:3]))


def save_and_load(model: Headstart, folder: Path) -> Any:
    """Save, load, change in place and load again."""
    model.save(folder / "model")
    loaded = Headstart.load(folder / "model")
    answers = {"loaded": some(loaded, loaded.features[:3])}
    with Headstart.updating(folder / "model") as changed:
        first = changed.features[0]
        changed.add_feature("new", kind=str(changed.feature(first).kind))
        changed.add_rows({"guest": {first: ends(changed, first)[1]}})
        changed.observe(triples(changed, 2), **time_of(changed))
        changed.observe_feature("new", {"guest": ends(changed, first)[0]}, **time_of(changed))
        changed.rename_feature(changed.features[2], "other")
        changed.remove_row(changed.rows[9])
    later = Headstart.load(folder / "model")
    names = [later.rows[0], "guest"]
    answers["changed"] = numbers(later.predict(names, [first, "other", "new"]))
    later.save(folder / "model")
    answers["saved again"] = numbers(Headstart.load(folder / "model").predict(names, [first, "other", "new"]))
    return answers


VERBS: dict[str, Callable[[Headstart, Path], Any]] = {
    "add_feature": add_feature,
    "add_features": add_features,
    "observe one triple": observe_one_triple,
    "observe two triples": observe_two_triples,
    "observe rows only": observe_rows_only,
    "observe a named feature": observe_a_named_feature,
    "observe a frame": observe_a_frame,
    "observe a surprise": observe_a_surprise,
    "add_rows": add_rows,
    "add_rows that teach": add_rows_that_teach,
    "remove_row": remove_row,
    "remove_feature": remove_feature,
    "rename": rename,
    "predict": predict,
    "predict pairs": predict_pairs,
    "predict best": predict_best,
    "recommend": recommend,
    "audience": audience,
    "suggest": suggest,
    "similar": similar,
    "explain": explain,
    "evaluate": evaluate,
    "info": info,
    "export": export,
    "refit": refit,
    "save and load": save_and_load,
}


def every_verb(model: str, folder: Path) -> Any:
    """Let each verb start from the model as it was fitted, in a folder of its own."""
    answers = {}
    for name, verb in VERBS.items():
        own = folder / name
        own.mkdir()
        answers[name] = verb(model_of(f"bayes {model}"), own)
    return answers


SCENARIOS = {model: partial(every_verb, model) for model in MODELS}
