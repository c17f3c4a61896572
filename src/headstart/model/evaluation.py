"""Evaluate a fitted model on a table with observations that it has not seen.

Features that are not in the model are tested as new ones, by shots. For features of the model, the unobserved
cells are predicted. ``evaluate`` is the implementation of ``Headstart.evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.core.neighbours import LocalPart, local_part_of
from headstart.core.types import FeatureBatch, Heads
from headstart.core.value_references import RowColumnMeans
from headstart.distributed import process_group
from headstart.errors import InputError, for_user, join_names, option_name
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import Answers, Score, score
from headstart.evaluate.rankings import Lists, is_relevant, score_lists
from headstart.evaluate.results import Results, Run
from headstart.evaluate.scoring import NewFeatureModel, score_new_features, score_value_reference
from headstart.model.cell_predictions import predict_features
from headstart.model.features import Feature
from headstart.model.inputs import ReadOptions, as_table
from headstart.model.local import reference_residuals, row_residuals
from headstart.model.ranking import TargetRow, observed_slots
from headstart.model.saving.export import export_table
from headstart.model.scores import By, Candidates, Criterion, scores
from headstart.model.state import ModelState
from headstart.table import Cells, Kinds, Names, Table
from headstart.table.cells import offsets
from headstart.table.kinds import KindType
from headstart.table.margins import Category
from headstart.training.table_inputs import table_groups

On = Literal["features", "cells"]

SHOTS = (0, 1, 2, 4, 8, 16, 32)  # by default, as far as they leave a target

_FEATURES_AT_ONCE = 1024  # new features that the adapter reads at once, which bounds the memory

MEANS = "row-column-means"  # the name of this method in results

_MIN_FEATURES, _MIN_ROWS, _MIN_OBSERVATIONS = 50, 50, 8  # of a table, and of a row, to compare rankings

_MAX_CELLS = 2**22  # scored to compare rankings

_HIDDEN = 0.25  # share of the observations of a row that is held out to compare rankings

_CLEARLY_BETTER = 1.1  # NDCG relative to that of the mean, from which another ranking is the default


class HeldOut(NamedTuple):
    """Held-out observations of rows of the model.

    Observation i is the value ``values[i]`` of the model's row ``rows[i]`` at the table's feature
    ``columns[i]``.
    """

    table: Table  # of the tested features
    rows: NDArray[np.int64]  # (n,)
    columns: NDArray[np.int64]  # (n,)
    values: NDArray[np.float64]  # (n,)
    weights: NDArray[np.float64] | None  # (n,); None: all 1

    def take(self, cells: NDArray[np.int64]) -> HeldOut:
        """Return only the observations at the positions ``cells``."""
        weights = None if self.weights is None else self.weights[cells]
        return HeldOut(self.table, self.rows[cells], self.columns[cells], self.values[cells], weights)


def held_out_table(model: ModelState, data: object, options: ReadOptions) -> Table:
    """Return held-out ``data`` as a table, by default of the kind of the model if that has only one."""
    if not isinstance(data, Table) and len(model.kinds) == 1:
        options.setdefault("kinds", str(model.kinds[0]))  # few values may look like another kind
    return as_table(data, "evaluate()", options, quiet=True)


def _caller() -> str:
    """Return the name of the caller in error messages."""
    return for_user("evaluate()", "evaluate")


def evaluate(
    model: ModelState,
    table: Table,
    shots: Sequence[int] | None,
    on: On | None,
    seed: int,
    by: By | None = None,
) -> Results:
    """Score the model on the features of a ``table`` that are not in it, or on cells of its own features.

    The parameters are those of ``Headstart.evaluate``; ``seed`` is ``random_state``.
    """
    if by is None and all(kind.type == KindType.CLICK for kind in table.kinds):
        by = "mean"  # only rankings can score clicks
    criterion = None if by is None else Criterion(by)
    if on not in (None, "features", "cells"):
        raise InputError(f"{option_name('on')} must be 'features' or 'cells'; got {on!r}")
    is_known = np.array([name in model.feature_store for name in table.features], dtype=bool)
    on = on or ("cells" if is_known.all() else "features")
    tested = np.flatnonzero(is_known if on == "cells" else ~is_known)
    if len(tested) == 0:
        other, known = ("features", "none") if on == "cells" else ("cells", "all")
        raise InputError(
            f"{_caller()}: the model knows {known} of the table's features, so there is nothing to evaluate "
            f"{for_user(f'on={on!r}', f'--on {on}')} on; use {option_name('on', other)}"
        )
    table = table.with_features(tested)
    positions = np.array([model.rows.position(row) if row in model.rows else -1 for row in table.rows])
    usable = positions[table.row_index] >= 0
    if not usable.any():
        raise InputError(
            f"{_caller()}: the model knows none of the rows that were observed "
            f"(they are {join_names(table.rows, 3)}); "
            "rows must have the names that the model was fitted with"
        )
    weights = None if table.weights is None else table.weights[usable]
    columns, values = table.feature_index[usable].astype(np.int64), table.values[usable].astype(np.float64)
    held_out = HeldOut(table, positions[table.row_index[usable]], columns, values, weights)
    facts = {
        "on": on,
        "rows": int((positions >= 0).sum()),
        "features": table.shape[1],
        "observations": _count_answers(table, columns),
        "unknown_rows": int((positions < 0).sum()),
    }
    if on == "cells":
        return _evaluate_cells(model, held_out, facts, criterion)
    return _evaluate_new_features(model, held_out, facts, shots, seed, criterion)


def _evaluate_new_features(
    model: ModelState,
    held_out: HeldOut,
    facts: dict[str, Any],
    shots: Sequence[int] | None,
    seed: int,
    criterion: Criterion | None,
) -> Results:
    """Compute the k-shot curve of features that are not in the model.

    ``facts`` become part of the results.
    """
    table, kinds = held_out.table, _model_kinds(model, held_out.table)
    features = _new_features(model, held_out, kinds)
    if shots is None:
        shots = tuple(k for k in SHOTS if k < int(features.cells.counts.max()))
    test = KShotTest(features, kinds, shots, seed)
    # As ``add_feature`` reads rows.
    references = model.row_store.take(np.arange(len(model.rows)), "reference")

    @torch.no_grad()
    def adapt(features: FeatureBatch) -> Heads:
        blocks = torch.split(torch.arange(len(features)), _FEATURES_AT_ONCE)
        parts = [features.take(block) for block in blocks]
        return Heads.concatenate(
            [model.widen_heads(model.adapter.adapt(part, references), part, references) for part in parts]
        )

    def local(heads: Heads, context: FeatureBatch) -> LocalPart | None:
        if model.local is None:
            return None
        observed = reference_residuals(model, np.arange(len(model.rows)))
        return local_part_of(model.knowledge, heads, context, references, model.local, observed)

    types = torch.from_numpy(kinds.types)[test.features]
    tested = NewFeatureModel(
        adapt,
        model.states,
        model.knowledge.likelihood,
        local,
        row_residuals(model, model.states),
        None if criterion is None else partial(_rank_rows, model, criterion, types),
    )
    runs = score_new_features(model.settings.chosen_adapter.name, tested, test, model.calibration, {})
    if (reference := _row_column_means(model, kinds)) is not None:
        runs += score_value_reference(MEANS, reference, test, None)
    facts = {**facts, "tested": test.tested, "left_out": table.shape[1] - test.tested}
    methods = list(dict.fromkeys(run.method for run in runs))
    return Results(
        data=facts, settings={"methods": methods, "shots": list(test.shots), "seed": seed}, runs=runs
    )


def _new_features(model: ModelState, held_out: HeldOut, kinds: Kinds) -> FeatureBatch:
    """Return new features of these ``kinds`` with all their observations."""
    table, columns = held_out.table, held_out.columns
    cells = Cells.from_pairs(
        torch.from_numpy(columns),
        torch.from_numpy(held_out.rows),
        torch.from_numpy(kinds.scale(held_out.values, columns)).float(),
        len(table.features),
        len(model.rows),
        None if held_out.weights is None else torch.from_numpy(held_out.weights).float(),
    )
    finds_scale = torch.tensor([float(kind.shares_units(model.middle)) for kind in kinds])
    units = torch.stack([torch.zeros_like(finds_scale), finds_scale], dim=1).double()
    types = model.modelled_types(torch.from_numpy(kinds.types))
    batch = FeatureBatch(cells, _encoded_metadata(model, table), types, units)
    return replace(batch, groups=table_groups(table))


def _rank_rows(
    model: ModelState,
    criterion: Criterion,
    types: torch.Tensor,
    heads: Heads,
    context: FeatureBatch,
    local: LocalPart | None,
) -> Callable[[slice], torch.Tensor]:
    """Return a function from a slice of features, whose kinds are ``types``, to the scores of all rows."""

    def rows_of(part: slice) -> torch.Tensor:
        candidates = Candidates(
            heads.take(part),
            types[part],
            context.kinds[part],
            context.shots[part],
            torch.zeros(len(context.shots[part]), dtype=torch.bool),
            torch.unique(types),
            None if local is None else local.take(np.arange(local.size)[part]),
        )
        return scores(model, criterion, candidates, model.states).T

    return rows_of


def _row_column_means(model: ModelState, tested: Kinds) -> RowColumnMeans | None:
    """Return the row and column means of all observations of the model, to compare it with.

    None if values of the model and of the ``tested`` kinds are clicks or have different units.
    """
    kinds = {(kind.type, kind.offset, kind.span) for kind in (*model.kinds, *tested)}
    if len(kinds) > 1 or any(kind == KindType.CLICK for kind, _, _ in kinds):
        return None
    return RowColumnMeans(export_table(model, metadata=False).cells())


def _model_kinds(model: ModelState, table: Table) -> Kinds:
    """Return the kinds of new features; raise an error if the model was not fitted on such a kind.

    If the model finds the scales of real features, they all get its common scale.
    """
    known_types = {kind.type for kind in model.kinds}
    for name, kind in zip(table.features, table.kinds, strict=True):
        if kind.type not in known_types:
            known_names = ", ".join(sorted({known.name for known in model.kinds}))
            raise InputError(
                f"feature {name!r}: kind {kind} is not among those the model was fitted on ({known_names}); "
                f"read the table with {option_name('kinds')}"
            )
    middle = model.middle
    if middle is None:
        return table.kinds
    return Kinds(
        [
            kind.with_units(middle.first, middle.second) if kind.type == KindType.REAL else kind
            for kind in table.kinds
        ]
    )


def _encoded_metadata(model: ModelState, table: Table) -> torch.Tensor:
    """Encode the table's metadata: (features, width); columns that the model does not have are ignored."""
    if model.schema is None:
        return torch.zeros(len(table.features), 0)
    if table.metadata is None:
        return torch.from_numpy(model.schema.encode([{}] * len(table.features)))
    names = [column.name for column in model.schema.columns if column.name in table.metadata.column_names]
    return torch.from_numpy(model.schema.encode_table(table.metadata.select(names), model.encoders))


def _evaluate_cells(
    model: ModelState, held_out: HeldOut, facts: dict[str, Any], criterion: Criterion | None
) -> Results:
    """Compute the error of current heads, at cells that neither the features nor the rows have observed.

    ``facts`` become part of the results.
    """
    features = [model.feature_store[name] for name in held_out.table.features]
    cells, mean, distance = _predict_unobserved(model, features, held_out)
    if len(cells) == 0:
        raise InputError(
            f"{_caller()}: the model has observed all of these cells; give cells that were held out"
        )
    table, rows, columns, values, weights = held_out.take(cells)
    kinds = np.array([feature.kind.type for feature in features])[columns]
    shots = np.array([feature.shots for feature in features])[columns]
    name, median_shots = model.settings.chosen_adapter.name, int(np.median(shots))
    answers = _answers(table, rows, columns)
    metrics = score(values, mean, columns, kinds, distance, weights=weights, answers=answers)
    if criterion is not None:
        slots = np.array(model.feature_store.slots(table.features), dtype=np.int64)
        scaled = torch.from_numpy(table.kinds.scale(values, columns))
        relevant = is_relevant(scaled, torch.from_numpy(kinds)).numpy()
        metrics |= _score_features_for_rows(model, rows[relevant], slots[columns[relevant]], criterion)
    scores_by_method = {name: metrics}
    if (means := _row_column_means(model, table.kinds)) is not None:
        order_of_store = {name: position for position, name in enumerate(model.feature_store)}
        positions = np.array([order_of_store[feature.name] for feature in features])[columns]
        of_means = (means.rows[rows] * means.features[positions]).sum(1).numpy()
        known = Kinds([feature.kind for feature in features])
        predicted = known.values_within_limits(of_means, means.std, columns)
        scores_by_method[MEANS] = score(values, predicted, columns, kinds, weights=weights)
    runs = [
        Run(split=0, method=method, shots=median_shots, metric=metric, value=result.value,
            features=result.features, targets=result.targets)
        for method, results in scores_by_method.items() for metric, result in results.items()
    ]  # fmt: skip
    tested_answers = _count_answers(table, columns)
    facts = {**facts, "tested": tested_answers, "left_out": facts["observations"] - tested_answers}
    settings = {"methods": list(scores_by_method), "shots": [median_shots]}
    return Results(data=facts, settings=settings, runs=runs)


def _predict_unobserved(
    model: ModelState, features: list[Feature], held_out: HeldOut
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Predict the held-out cells that their features have not observed, feature by feature.

    Return their positions in ``held_out``, their predicted means, and the distances of the values from their
    predictions in standard deviations, on the scale of numbers: three of (cells,).
    """
    _, rows, columns, values, _ = held_out
    order = np.argsort(columns, kind="stable")
    starts = np.searchsorted(columns[order], np.arange(len(features) + 1))
    means, distances, tested = [], [], []
    for column, feature in enumerate(features):
        cells = order[starts[column] : starts[column + 1]]
        cells = cells[~np.isin(rows[cells], model.observers(feature))]
        states = model.states.take(torch.from_numpy(rows[cells]))
        names = Names([str(i) for i in range(len(cells))], "row")
        prediction = predict_features(model, names, states, [feature.name])
        means.append(prediction.mean[:, 0])
        truth = feature.kind.margin.to_number(values[cells])
        tiny = np.finfo(float).tiny
        distances.append(np.abs(truth - prediction.center[:, 0]) / np.maximum(prediction.scale[:, 0], tiny))
        tested.append(cells)
    return np.concatenate(tested), np.concatenate(means), np.concatenate(distances)


@torch.no_grad()
def choose_ranking(model: ModelState) -> ModelState:
    """Choose the criterion of ``recommend`` for ratings, by the ranking of held-out cells.

    A quarter of the observations of some rows is held out from the states of these rows. All features are
    ranked for each row, and the held-out cells with high ratings are relevant. The heads of features know
    these cells, for each criterion alike.
    """
    judgement, columns = model.judgement, model.feature_store.columns
    cells, kinds = model.knowledge.cells, model.knowledge.kinds
    rows = torch.nonzero(cells.counts >= _MIN_OBSERVATIONS)[:, 0]
    large = len(rows) >= _MIN_ROWS and len(kinds) >= _MIN_FEATURES
    if judgement is None or not (large and process_group().is_single):
        return model
    if (
        not bool((kinds == KindType.RATING).all())
        or columns.find_different_units(columns.used_slots) is not None
    ):
        return model
    generator = torch.Generator().manual_seed(0)
    most = max(_MIN_ROWS, _MAX_CELLS // len(kinds))
    rows = rows[torch.randperm(len(rows), generator=generator)[:most]]
    observed = cells.take(rows)
    hidden = torch.rand(len(observed.index), generator=generator) < _HIDDEN
    context, targets = observed.keep(~hidden), observed.keep(hidden)
    lists = Lists(targets.keep(is_relevant(targets.values, kinds[targets.index])), context)
    states = model.adapter.refine(model.backbone.states(context))
    slots = np.array(model.feature_store.slots(model.backbone_features), dtype=np.int64)
    candidates = Candidates.at(model, columns, torch.from_numpy(slots))
    ndcg = {}
    for by in ("mean", "relevance"):
        criterion = Criterion(by)

        def features_of(part: slice, criterion: Criterion = criterion) -> torch.Tensor:
            return scores(model, criterion, candidates, states.take(part))

        metrics = score_lists(features_of, lists)
        ndcg[by] = metrics["ndcg@10"].value if metrics else 0.0
    if ndcg["relevance"] <= _CLEARLY_BETTER * ndcg["mean"]:
        return model
    return replace(model, judgement=judgement.revised(ranking="relevance"))


def _count_answers(table: Table, columns: NDArray[np.int64]) -> int:
    """Return the number of observations of ``columns`` (n,); an answer to a category is one."""
    _, first = np.unique(table.groups, return_index=True)
    return int(np.isin(columns, first).sum())


def _answers(table: Table, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Answers | None:
    """Return the cells of ``rows`` and ``columns`` (n,) as answers; None if the table has no categories."""
    levels = np.array([isinstance(kind.margin, Category) for kind in table.kinds], dtype=bool)
    return Answers.of(table.groups[columns], rows, levels[columns]) if levels.any() else None


def _score_features_for_rows(
    model: ModelState, rows: NDArray[np.int64], slots: NDArray[np.int64], criterion: Criterion
) -> dict[str, Score]:
    """Score the ranking of all features that a row has not observed, for the rows of relevant cells.

    Relevant cell i is that of the model's row ``rows[i]`` and of the feature stored in ``slots[i]``. Without
    relevant cells there is nothing to score.
    """
    if len(rows) == 0:
        return {}
    columns = model.feature_store.columns
    used = columns.used_slots
    positions = np.full(len(columns.positions), -1)
    positions[used] = np.arange(len(used))
    listed, lines = np.unique(rows, return_inverse=True)
    pairs = torch.from_numpy(lines), torch.from_numpy(positions[slots])
    relevant = Cells.from_pairs(*pairs, torch.ones(len(rows)), len(listed), len(used))
    observed = [
        positions[observed_slots(model, columns, TargetRow(model.rows[row], int(row)))] for row in listed
    ]
    counts = torch.tensor([len(observations) for observations in observed], dtype=torch.int64)
    index = torch.from_numpy(np.concatenate(observed))
    excluded = Cells(offsets(counts), index, torch.ones(len(index)), len(used))
    candidates = Candidates.at(model, columns, torch.from_numpy(used))

    def features_of(part: slice) -> torch.Tensor:
        return scores(model, criterion, candidates, model.row_store.take(listed[part]))

    return score_lists(features_of, Lists(relevant, excluded))
