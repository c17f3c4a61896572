"""Draw cells jointly, and fill tables several times: ``Headstart.sample`` and ``Headstart.impute``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.predictive import draw_scores
from headstart.core.types import RowStates
from headstart.errors import InputError
from headstart.evaluate.pooled_estimates import Pooled, pool
from headstart.model.cell_predictions import leave_out, predict_features
from headstart.model.levels import category_columns, columns_of
from headstart.model.state import ModelState
from headstart.table import Kind, Kinds, Names, Table
from headstart.table.kinds import split_column
from headstart.table.margins import Category
from headstart.table.names import as_name

_FEATURES_AT_ONCE = 16  # features whose draws become values together, which bounds the memory


@torch.no_grad()
def draw_cells(
    model: ModelState, rows: Names, states: RowStates, names: Sequence[Any], n: int, seed: int
) -> NDArray[np.float64]:
    """Draw the values of all cells jointly ``n`` times, in the data's own units: (n, rows, features).

    The value of a category is the position of a level.

    Each cell has the calibrated distribution of its prediction; draws of several cells have the rank
    correlations of their joint posterior (a Gaussian copula). Of the levels of a category one is drawn, the
    one with the largest log p − log(−log u), where u is the rank of its draw: with independent ranks, each
    level has its probability p (the Gumbel-max trick).
    """
    from scipy.special import ndtr

    widths = [len(category_columns(model, name)) or 1 for name in names]
    first = np.cumsum(widths) - widths  # the first column of each feature
    columns, heads = model.feature_store.take(columns_of(model, names))
    prediction = leave_out(model, predict_features(model, rows, states, names))
    generator = np.random.default_rng(seed)
    drawn = np.empty((n, len(rows), len(names)))
    kinds = model.kinds_of(columns)
    scores = draw_scores(heads, states, kinds, model.knowledge.likelihood, n, generator)
    levels = {position: np.empty((n, len(rows))) for position in prediction.chances}
    for number, score in enumerate(scores):
        ranks = np.clip(ndtr(score), 1e-12, 1 - 1e-12)
        drawn[number] = ranks[:, first]
        for position, chances in prediction.chances.items():
            level_ranks = ranks[:, first[position] : first[position] + widths[position]]
            odds = np.log(np.clip(chances, np.finfo(float).tiny, 1)) - np.log(-np.log(level_ranks))
            levels[position][number] = np.where(np.isnan(odds).any(axis=1), np.nan, odds.argmax(1))
    for part in np.array_split(np.arange(len(names)), max(1, len(names) // _FEATURES_AT_ONCE)):
        drawn[:, :, part] = prediction.take_features(part).values_at(drawn[:, :, part])
    for position, numbers in levels.items():
        drawn[:, :, position] = numbers
    return drawn


def with_levels(values: NDArray[np.float64], kinds: Iterable[Kind]) -> list[Any]:
    """Return values (…, features) as nested lists, with levels in place of the positions of categories."""
    texts: NDArray[Any] = values.astype(object)
    for position, kind in enumerate(kinds):
        if isinstance(kind.margin, Category):
            levels = np.array([*kind.margin.names, None], object)  # the last one is not applicable
            texts[..., position] = levels[np.nan_to_num(values[..., position], nan=-1).astype(int)]
    return texts.tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, repr=False)
class Imputations(Sequence[Any]):
    """A table whose missing cells were filled several times, with draws from the model.

    ``imputations[0]`` is the first filled table as a pandas frame, with one line per row and one column per
    feature; the class is a sequence of m such frames. Observed cells have their observed values in each, and
    cells that are not applicable stay empty (NaN).

    Attributes
    ----------
    rows, features : Names
        The names of the rows and features.
    values : ndarray of shape (m, rows, features)
        The filled tables. The value of a category is the position of a level in its kind.
    observed : ndarray of shape (rows, features)
        Whether each cell was observed.
    kinds : Kinds
        The kinds of the features.
    """

    rows: Names
    features: Names
    values: NDArray[np.float64]
    observed: NDArray[np.bool_]
    kinds: Kinds

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: Any) -> Any:
        """Return one filled table as a pandas frame; pandas must be installed."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        try:
            import pandas
        except ImportError:
            raise InputError("frames need pandas, which is not installed; use to_arrow() or values") from None
        frame = pandas.DataFrame(self.values[number], list(self.rows), list(self.features))
        for name, levels in self._levels():
            codes = frame[name].fillna(-1).to_numpy(dtype=int)
            frame[name] = pandas.Categorical.from_codes(codes, categories=levels)
        return frame

    def _levels(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the name and the levels of each category."""
        for name, kind in zip(self.features, self.kinds, strict=True):
            if isinstance(kind.margin, Category):
                yield name, kind.margin.names

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def to_arrow(self, number: int) -> pa.Table:
        """Return one filled table: a column ``row`` and one column per feature."""
        columns: dict[str, Any] = dict(zip(self.features, self.values[number].T, strict=True))
        for name, levels in self._levels():
            columns[name] = [None if np.isnan(code) else levels[int(code)] for code in columns[name]]
        return pa.table({"row": list(self.rows), **columns})

    def pool(self, estimate: Callable[[Any], tuple[float, float]], *, degrees: float | None = None) -> Pooled:
        """Estimate a quantity from each filled table, and pool the estimates by Rubin's rules.

        Parameters
        ----------
        estimate : callable
            Maps a pandas frame to an estimate and its variance (the squared standard error).
        degrees : float, default=None
            The degrees of freedom of an estimate from complete data, as in ``pool``.

        Returns
        -------
        Pooled
            The pooled estimate, with the uncertainty of the missing values.
        """
        if not callable(estimate):
            raise InputError(f"pool() takes a function of a frame; got {type(estimate).__name__}")
        pairs = [estimate(frame) for frame in self]
        try:
            numbers = np.array(pairs, dtype=np.float64).reshape(len(self), 2)
        except (TypeError, ValueError):
            raise InputError(
                "the function given to pool() must return two numbers, an estimate and its variance; it "
                f"returned {pairs[0]!r}"
            ) from None
        return pool(numbers[:, 0].tolist(), numbers[:, 1].tolist(), degrees)

    def __repr__(self) -> str:
        filled = int((~self.observed & np.isfinite(self.values).all(axis=0)).sum())
        rows, features = len(self.rows), len(self.features)
        return f"Imputations({len(self)} × {rows} rows × {features} features, {filled} cells filled)"


def require_missing_cells(model: ModelState, names: Sequence[Any]) -> None:
    """Raise an error for features of clicks, whose cells without an observation are not missing."""
    columns = columns_of(model, names)
    clicks = [name for name in columns if model.feature_store[name].kind.name == "click"]
    if clicks:
        raise InputError(
            f"feature {clicks[0]!r} has clicks: a cell without a click is not missing, so there is nothing "
            "to impute; sample() draws from its prediction"
        )


def fill_cells(
    model: ModelState, drawn: NDArray[np.float64], table: Table, rows: Names, features: Sequence[Any]
) -> Imputations:
    """Return draws (m, rows, features) with the observed cells of ``table`` unchanged."""
    row, feature = np.full(len(table.rows), -1), np.full(len(table.features), -1)
    row[table.rows.positions(rows)] = np.arange(len(rows))
    level = np.full(len(table.features), -1)  # of columns that are a level
    kinds = []
    for position, name in enumerate(features):
        columns = category_columns(model, name)
        at = table.features.positions(columns or [as_name(name, "feature")])
        feature[at] = position
        if columns:
            level[at] = np.arange(len(at))
            kinds.append(Kind(Category(tuple(split_column(column)[1] for column in columns))))
        else:
            kinds.append(table.kinds[int(at[0])])
    cells, values = (row[table.row_index], feature[table.feature_index]), table.values.astype(np.float64)
    levels = level[table.feature_index]
    inside = (cells[0] >= 0) & (cells[1] >= 0) & ((levels < 0) | (values == 1))
    values = np.where(levels < 0, values, levels)
    observed = np.zeros((len(rows), len(kinds)), dtype=bool)
    observed[cells[0][inside], cells[1][inside]] = True
    drawn[:, cells[0][inside], cells[1][inside]] = values[inside]
    names = Names([as_name(name, "feature") for name in features], "feature")
    return Imputations(rows, names, drawn, observed, Kinds(kinds))
