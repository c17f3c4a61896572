"""How well a fitted model predicts what it has not seen: new features by shots, or cells of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.core.types import FeatureBatch, Heads
from headstart.errors import InputError, for_user, join_names, option_name
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import score
from headstart.evaluate.results import Results, Run
from headstart.evaluate.scoring import score_heads
from headstart.model.prediction import predict_features
from headstart.model.state import ModelState
from headstart.table import Cells, Kinds, Names, Table
from headstart.table.kinds import KindType

On = Literal["features", "cells"]

_FEATURES_AT_ONCE = 1024


def evaluate(
    fitted: ModelState, table: Table, shots: Sequence[int], on: On | None, seed: int, what: str
) -> Results:
    """Score the model on a table's features that it does not know, or on cells of those it knows."""
    if on not in (None, "features", "cells"):
        raise InputError(f"{option_name('on')} must be 'features' or 'cells'; got {on!r}")
    known = np.array([name in fitted.catalogue for name in table.features], dtype=bool)
    wanted = on or ("cells" if known.all() else "features")
    chosen = np.flatnonzero(known if wanted == "cells" else ~known)
    if len(chosen) == 0:
        other, there = ("features", "none") if wanted == "cells" else ("cells", "all")
        raise InputError(
            f"{what}: the model knows {there} of the table's features, so there is nothing to evaluate "
            f"{for_user(f'on={wanted!r}', f'--on {wanted}')} on; use {option_name('on', other)}"
        )
    part = table.with_features(chosen)
    places = np.array([fitted.rows.position(row) if row in fitted.rows else -1 for row in part.rows])
    seen = places[part.row_index] >= 0
    if not seen.any():
        raise InputError(
            f"{what}: the model knows none of the rows that were observed "
            f"(they are {join_names(part.rows, 3)}); "
            "rows must have the names that the model was fitted with"
        )
    rows, columns = places[part.row_index[seen]], part.feature_index[seen].astype(np.int64)
    values = part.values[seen].astype(np.float64)
    facts = {
        "on": wanted,
        "rows": int((places >= 0).sum()),
        "features": len(chosen),
        "observations": int(seen.sum()),
        "unknown_rows": int((places < 0).sum()),
    }
    if wanted == "cells":
        return _on_cells(fitted, part, rows, columns, values, facts, what)
    return _on_features(fitted, part, rows, columns, values, facts, shots, seed)


def _on_features(
    fitted: ModelState,
    table: Table,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    values: NDArray[np.float64],
    facts: dict[str, Any],
    shots: Sequence[int],
    seed: int,
) -> Results:
    """The k-shot curve of features that are new to the model."""
    kinds = _kinds_of(fitted, table)
    cells = Cells.from_pairs(
        torch.from_numpy(columns),
        torch.from_numpy(rows),
        torch.from_numpy(kinds.scale(values, columns)).float(),
        len(table.features),
        len(fitted.rows),
    )
    types = torch.from_numpy(kinds.types)
    finds = torch.tensor([float(fitted.middle is not None and kind == fitted.middle) for kind in kinds])
    units = torch.stack([torch.zeros_like(finds), finds], dim=1).double()
    batch = FeatureBatch(cells, _metadata_of(fitted, table), fitted.modelled_kinds(types), units)
    test = KShotTest(batch, kinds, shots, seed)
    name = fitted.settings.chosen_adapter.name

    @torch.no_grad()
    def heads(context: FeatureBatch) -> Heads:
        parts = [context.take(part) for part in torch.split(torch.arange(len(context)), _FEATURES_AT_ONCE)]
        return Heads.concatenate(
            [
                fitted.widen_heads(fitted.adapter.adapt(part, fitted.states), part, fitted.states)
                for part in parts
            ]
        )

    likelihood = fitted.knowledge.likelihood
    runs = score_heads(name, heads, fitted.states, likelihood, test, fitted.calibration, {})
    facts = {**facts, "tested": len(test), "left_out": test.left_out}
    return Results(
        data=facts, settings={"methods": [name], "shots": list(test.shots), "seed": seed}, runs=runs
    )


def _kinds_of(fitted: ModelState, table: Table) -> Kinds:
    """The kinds of new features; where the model finds scales of its own, a real is given in shared units."""
    known = {kind.type for kind in fitted.kinds}
    for name, kind in zip(table.features, table.kinds, strict=True):
        if kind.type not in known:
            there = ", ".join(sorted({each.name for each in fitted.kinds}))
            raise InputError(
                f"feature {name!r}: kind {kind} is not among those the model was fitted on ({there}); "
                f"read the table with {option_name('kinds')}"
            )
    middle = fitted.middle
    return Kinds([middle if middle and kind.type == KindType.REAL else kind for kind in table.kinds])


def _metadata_of(fitted: ModelState, table: Table) -> torch.Tensor:
    """The table's metadata as the model encodes it; columns that the model does not have are not read."""
    if fitted.schema is None:
        return torch.zeros(len(table.features), 0)
    if table.metadata is None:
        return torch.from_numpy(fitted.schema.encode([{}] * len(table.features)))
    names = [each.name for each in fitted.schema.columns if each.name in table.metadata.column_names]
    return torch.from_numpy(fitted.schema.encode_table(table.metadata.select(names), fitted.encoders))


def _on_cells(
    fitted: ModelState,
    table: Table,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    values: NDArray[np.float64],
    facts: dict[str, Any],
    what: str,
) -> Results:
    """The errors of the heads as they are, at cells that neither they nor the rows have observed."""
    features = [fitted.catalogue[name] for name in table.features]
    order = np.argsort(columns, kind="stable")
    ends = np.searchsorted(columns[order], np.arange(len(features) + 1))
    means, stds, kept = [], [], []
    for column, feature in enumerate(features):
        own = order[ends[column] : ends[column + 1]]
        own = own[~np.isin(rows[own], fitted.observers(feature))]
        states = fitted.states.take(torch.from_numpy(rows[own]))
        names = Names([str(i) for i in range(len(own))], "row")
        found = predict_features(fitted, names, states, [feature.name])
        means.append(found.mean[:, 0])
        stds.append(found.std[:, 0])
        kept.append(own)
    cells = np.concatenate(kept)
    if len(cells) == 0:
        raise InputError(f"{what}: the model has observed all of these cells; give cells that were held out")
    kinds = np.array([feature.kind.type for feature in features])[columns[cells]]
    shots = np.array([feature.shots for feature in features])[columns[cells]]
    name, usual = fitted.settings.chosen_adapter.name, int(np.median(shots))
    scored = score(values[cells], np.concatenate(means), columns[cells], kinds, np.concatenate(stds))
    runs = [
        Run(split=0, method=name, shots=usual, metric=metric, value=each.value, features=each.features,
            targets=each.targets)
        for metric, each in scored.items()
    ]  # fmt: skip
    facts = {**facts, "tested": len(cells), "left_out": len(values) - len(cells)}
    return Results(data=facts, settings={"methods": [name], "shots": [usual]}, runs=runs)
