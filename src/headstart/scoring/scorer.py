"""A saved model as a function from tables of rows or cells to tables of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.core.devices import device_of
from headstart.errors import InputError, ModelFileError
from headstart.model import Headstart
from headstart.model.asking.predicting import predict_features, predict_pairs
from headstart.model.asking.prediction import Prediction, coded
from headstart.model.asking.recommending import Asker, best_features
from headstart.model.asking.scoring import By
from headstart.model.parts.fitted import Fitted
from headstart.model.saving.identity import identity_of
from headstart.scoring.question import Question
from headstart.table import Kinds, Names
from headstart.table.numbering import NameNumbering

_FEATURES_AT_ONCE = 4096  # whose heads are gathered together: 35 MB at 64 activations


class Scorer:
    """Maps tables of rows or of cells to predictions, by a saved model that is opened once.

    A large model is mapped into memory, so that only what is asked for is read. It can be handed to
    ``Dataset.map_batches`` of Ray Data with ``batch_format="pyarrow"``, where each worker opens the model
    once.

    Parameters
    ----------
    model : str or Path
        The folder of the model.
    features : list, default=None
        The features that rows are predicted at, or chosen from; all by default.
    top : int, default=None
        How many features to name for each row, best first; by default every feature is predicted.
    by, quantile, exclude_observed, mixed_kinds
        How the best features are found; see ``Headstart.recommend``.
    level : float, default=0.9
        The probability that each interval contains the value.
    device : str, default=None
        Where cells are computed, ``"cuda"`` for a graphics card; rankings are found by the processor.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from headstart import Headstart
    >>> from headstart.datasets import synthetic_ratings
    >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
    >>> folder = tempfile.mkdtemp()
    >>> Headstart(adapter="bayes", quiet=True).fit(table).save(folder)
    >>> cells = pa.table({"row": table.rows[:2], "feature": table.features[:2]})
    >>> Scorer(folder)(cells).column_names
    ['row', 'feature', 'mean', 'std', 'low', 'high']
    >>> len(Scorer(folder, top=3)(cells.select(["row"])))
    6
    """

    def __init__(
        self,
        model: str | Path,
        features: Sequence[Any] | None = None,
        top: int | None = None,
        *,
        by: By = "mean",
        quantile: float = 0.9,
        exclude_observed: bool = True,
        mixed_kinds: bool = False,
        level: float = 0.9,
        device: str | None = None,
    ) -> None:
        question = Question.asked(
            features,
            top,
            by=by,
            quantile=quantile,
            exclude_observed=exclude_observed,
            mixed_kinds=mixed_kinds,
            level=level,
        )
        self._open(Path(model), question, device)
        question.check(self.fitted, pairs=False)

    @classmethod
    def checked(cls, model: Path, question: Question, identity: str, device: str | None = None) -> Scorer:
        """A scorer for a question that was checked, by the model of this identity and no other."""
        scorer = cls.__new__(cls)
        scorer._open(model, question, device)
        if identity_of(model) != identity:  # also if it has changed while it was read
            raise ModelFileError(f"{model} has changed since scoring began; start anew, into another folder")
        return scorer

    def _open(self, model: Path, question: Question, device: str | None) -> None:
        self.question, self._device = question, device_of(device)
        self.fitted: Fitted = Headstart.load(model, verify=False)._fitted
        self._features = list(self.fitted.catalogue if question.features is None else question.features)

    def __call__(self, records: pa.Table) -> pa.Table:
        """Predict each record of a table with the columns row and feature, or row alone.

        Parameters
        ----------
        records : pyarrow.Table
            The cells to predict, or the rows.

        Returns
        -------
        pyarrow.Table
            row, feature, mean, std, low and high; of the best features also place and score. Cells are in
            the order of the records.

        Raises
        ------
        InputError
            If a row or feature is not in the model.
        """
        if "row" not in records.column_names:
            raise InputError(f"the records have no column 'row'; they have {records.column_names}")
        return self.answer(records, lambda record: f"record {record + 1}")

    def answer(self, records: pa.Table, place: Callable[[int], str]) -> pa.Table:
        """Predict each record; ``place(i)`` describes record i in messages."""
        names, rows = self._numbered(records, "row", place)
        positions = self.fitted.rows.positions(names)
        if "feature" in records.column_names and self.question.top is None:
            return self._pairs(names, rows, positions, *self._numbered(records, "feature", place))
        return self._rows([names[i] for i in rows], positions[rows])

    def answer_own(self, start: int, stop: int) -> pa.Table:
        """Predict the model's own rows from position ``start`` up to ``stop``."""
        # One by one: a slice would read the names of all rows.
        names = [self.fitted.rows[i] for i in range(start, stop)]
        return self._rows(names, np.arange(start, stop))

    def _numbered(
        self, records: pa.Table, noun: str, place: Callable[[int], str]
    ) -> tuple[list[str], NDArray[np.int32]]:
        numbering = NameNumbering(noun)
        column = records.column(noun)
        if pa.types.is_dictionary(column.type):  # which may hold names that none of these records has
            column = column.cast(column.type.value_type)
        numbers = numbering.number(column.combine_chunks(), place)
        return numbering.names, numbers

    def _pairs(
        self,
        names: list[str],
        rows: NDArray[np.int32],
        positions: NDArray[np.int64],
        features: list[str],
        which: NDArray[np.int32],
    ) -> pa.Table:
        numbers = self._cells(positions[rows], features, which.astype(np.int64))
        return _lines(coded(names, rows), coded(features, which), numbers)

    def _cells(
        self, rows: NDArray[np.int64], features: list[str], which: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], ...]:
        return predict_pairs(self.fitted, rows, features, which, self.question.level, self._device)

    def _rows(self, names: list[str], positions: NDArray[np.int64]) -> pa.Table:
        if self.question.top is not None:
            return self._best(names, positions, self.question.top)
        some, states = Names(names, "row"), self.fitted.roster.take(positions)
        blocks = [
            self._features[start : start + _FEATURES_AT_ONCE]
            for start in range(0, len(self._features), _FEATURES_AT_ONCE)
        ]
        parts = [predict_features(self.fitted, some, states, block, self._device) for block in blocks]
        return _joined(some, parts).to_arrow(self.question.level)

    def _best(self, names: list[str], positions: NDArray[np.int64], top: int) -> pa.Table:
        question, fitted = self.question, self.fitted
        best = best_features(
            fitted,
            [Asker(name, int(at)) for name, at in zip(names, positions, strict=True)],
            fitted.roster.take(positions),
            top,
            question.features,
            question.criterion,
            exclude_observed=question.exclude_observed,
            mixed_kinds=question.mixed_kinds,
        )
        counts = np.array([len(slots) for slots, _ in best], dtype=np.int64)
        rows = np.repeat(np.arange(len(names)), counts)
        places = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts) + 1
        slots = np.concatenate([*(slots for slots, _ in best), np.zeros(0, np.int64)])
        score = np.concatenate([*(score for _, score in best), np.zeros(0)])
        own, which = np.unique(slots, return_inverse=True)
        features = [fitted.catalogue.listing.features[slot].name for slot in own]
        numbers = self._cells(positions[rows], features, which)
        lines = _lines(coded(names, rows), coded(features, which), numbers)
        return lines.add_column(1, "place", pa.array(places)).add_column(3, "score", pa.array(score))


def _lines(rows: pa.Array, features: pa.Array, numbers: Sequence[NDArray[np.float64]]) -> pa.Table:
    names = ("row", "feature", "mean", "std", "low", "high")
    return pa.table([rows, features, *map(pa.array, numbers)], names=list(names))


def _joined(rows: Names, parts: list[Prediction]) -> Prediction:
    """Predictions of the same rows at the features of all parts."""
    if len(parts) == 1:
        return parts[0]
    return Prediction(
        rows,
        Names([name for part in parts for name in part.features], "feature"),
        Kinds([kind for part in parts for kind in part.kinds]),
        np.hstack([part.mean for part in parts]),
        np.hstack([part.std for part in parts]),
        np.vstack([part.reach for part in parts if part.reach is not None]),
    )
