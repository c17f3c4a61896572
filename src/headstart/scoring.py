"""Predict many rows or cells in partitions, on one machine or on a Ray cluster.

``score`` divides the records into partitions; a ``Worker`` predicts each with a ``Scorer`` and writes one
file of the ``ScoringFolder``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headstart import errors
from headstart.config import Config
from headstart.core.devices import device_of
from headstart.errors import HeadstartError, InputError, ModelFileError, did_you_mean, option_name
from headstart.files import left_over, lock_folder, partial_file, read_json, write_json
from headstart.model import Headstart
from headstart.model.cell_predictions import leave_out, predict_features, predict_pairs
from headstart.model.inputs import as_list, whole_number
from headstart.model.prediction import Prediction, require_level
from headstart.model.ranking import Selection, TargetRow, best_features, require_contexts, require_same_units
from headstart.model.saving.folder import model_digest
from headstart.model.scores import By, Criterion
from headstart.model.state import ModelState
from headstart.progress import Reporter
from headstart.table import Kinds, Names
from headstart.table.arrow_columns import dictionary_column
from headstart.table.names import NameNumbering, as_name
from headstart.table.sources import PARQUET, ParquetSource, Source, TextFormat, open_source

__all__ = ["Scored", "Scorer", "score"]


Engine = Literal["local", "ray"]

# Files of the output folder. Readers of a folder of Parquet files ignore names with an underscore.
MANIFEST = "_scoring.json"

COPY = "_records.parquet"  # a copy of records that are not in Parquet files

_FORMAT = 1  # of the manifest

_OUTPUT_FILES = re.compile(rf"part-\d{{6,}}\.parquet|{re.escape(MANIFEST)}|{re.escape(COPY)}")

_DIFFERENCES = {
    "model": "another model",
    "records": "other records",
    "partition_size": "another partition size",
}

# Sizes of partitions.
_CELLS = 1 << 22  # if rows × features are predicted: 270 MB while they are computed

_PAIRS = 1 << 19  # if pairs are predicted

_ROWS = 1 << 12  # if features are ranked for each row

_RECORDS_AT_ONCE = 1 << 16  # records in one read of a file: a partition may need a part of a row group only

_FEATURES_AT_ONCE = 4096  # features whose heads are gathered together: 35 MB at 64 activations


@dataclass(frozen=True)
class Scored:
    """A folder of predictions.

    Attributes
    ----------
    folder : Path
        The folder of the Parquet files.
    partitions : int
        The number of files.
    found : int
        The number of files that an earlier run had written.
    lines : int
        The number of predictions.
    """

    folder: Path
    partitions: int
    found: int
    lines: int

    def __str__(self) -> str:
        earlier = f" ({self.found} of them from an earlier run)" if self.found else ""
        return f"wrote {self.lines} predictions in {self.partitions} files to {self.folder}{earlier}"


def score(
    model: str | Path,
    out: str | Path,
    *,
    pairs: Any = None,
    rows: Any = None,
    features: Sequence[Any] | None = None,
    top: int | None = None,
    by: By = "mean",
    quantile: float = 0.9,
    exclude_observed: bool = True,
    mixed_kinds: bool = False,
    level: float = 0.9,
    engine: Engine = "local",
    workers: int | None = None,
    partition_size: int | None = None,
    device: str | None = None,
    row: str | None = None,
    feature: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    quiet: bool = False,
) -> Scored:
    """Predict many rows or cells by a saved model, into a folder of Parquet files.

    The records are divided into partitions. Each becomes one file, which is written in one step: an
    interrupted run continues when it is called again. Memory does not grow with the number of records. Both
    engines write the same files.

    Parameters
    ----------
    model : str or Path
        The folder of a saved model. It must not change during the run.
    out : str or Path
        A new or empty folder, or that of an interrupted run.
    pairs : path or frame, default=None
        The cells to predict: a CSV or Parquet file, a folder of Parquet files or a frame, with the columns
        row and feature. Other columns are ignored.
    rows : path, frame or list, default=None
        The rows to predict: a file, folder or frame with the column row, or a list of names. Without
        ``rows`` and ``pairs``, all rows of the model.
    features : list, default=None
        The features at which rows are predicted, or from which the best are chosen; all by default.
    top : int, default=None
        The number of features to return for each row, best first; by default every feature is predicted.
    by, quantile, exclude_observed, mixed_kinds
        How features are ranked; see ``Headstart.recommend``.
    level : float, default=0.9
        The probability that each interval contains the value.
    engine : {"local", "ray"}, default="local"
        This process, or workers of Ray: of a running cluster, of the cluster that ``RAY_ADDRESS`` names, or
        of this machine. All workers must see the folders under the same path.
    workers : int, default=None
        The number of Ray workers; by default the number of processors of the cluster.
    partition_size : int, default=None
        The largest number of records of a partition; the default needs a few hundred MB for each worker.
    device : str, default=None
        The device that computes cells: ``"cuda"`` for graphics cards, one for each worker of Ray. The
        processor computes rankings.
    row, feature : str, default=None
        The columns of the records, "row" and "feature" by default.
    separator, encoding : str, default=None
        The separator and encoding of text files, as in ``Table.read``.
    quiet : bool, default=False
        Whether to hide progress.

    Returns
    -------
    Scored
        The number of files and predictions. Files have the columns row, feature, mean, std, low and high;
        with ``top`` also place and score.

    Raises
    ------
    InputError
        If the arguments cannot be used, a name is not in the model, or the folder holds other files or a
        run of another model, other records or other settings.
    BusyError
        If another run writes to the folder.

    Examples
    --------
    >>> import tempfile
    >>> from headstart import Headstart
    >>> from headstart.datasets import synthetic_ratings
    >>> folder = tempfile.mkdtemp()
    >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
    >>> Headstart(adapter="bayes", quiet=True).fit(table).save(f"{folder}/model")
    >>> score(f"{folder}/model", f"{folder}/best", top=3, quiet=True).lines
    180
    """
    if not isinstance(model, str | Path):
        raise InputError(f"score() takes the folder of a saved model; got {type(model).__name__}")
    path = Path(model).resolve()
    _require_engine(engine, workers)
    if device is not None and engine == "local":  # machines of Ray workers may have other devices
        device_of(device)
    settings = {"exclude_observed": exclude_observed, "mixed_kinds": mixed_kinds, "level": level}
    question = Question.from_arguments(features, top, by=by, quantile=quantile, **settings)
    if pairs is not None and rows is not None:
        raise InputError(f"give either {option_name('pairs')} or {option_name('rows')}, not both")
    columns = (row or "row",) if pairs is None else (row or "row", feature or "feature")
    data, argument = (pairs, "pairs") if pairs is not None else (rows, "rows")
    text_format = TextFormat(separator, None, encoding)
    source = None if data is None else open_records(data, columns, text_format, argument)
    identity = model_digest(path)
    state = Headstart.load(path).state  # verified once, here; workers only map it into memory
    question.check(state, pairs=pairs is not None)
    features_per_row = len(question.features or state.feature_store)
    size = _partition_size(partition_size, question, features_per_row, pairs is not None)
    folder = ScoringFolder(Path(out).resolve())
    folder.require_no_other_files()
    busy = f"{out} is being written by another run; wait until it ends, or name another folder"
    with lock_folder(folder.path, create=True, busy=busy):
        folder.tidy()
        facts = {"model": identity, "question": question.model_dump(mode="json"), "partition_size": size}
        files = parquet_files(data)
        with _divide(source, files, len(state.rows), columns, size, folder, facts) as records:
            job = Job(path, identity, question, columns, records.partitions, folder.path, device)
            return _run(job, folder, engine, workers, Reporter(quiet))


def _require_engine(engine: object, workers: object) -> None:
    if engine not in get_args(Engine):
        hint = did_you_mean(str(engine), get_args(Engine))
        raise InputError(f"{option_name('engine')} must be 'local' or 'ray'; got {engine!r}{hint}")
    if workers is not None:
        whole_number(workers, option_name("workers"))
        if engine == "local":
            raise InputError(f"{option_name('workers')} is for {option_name('engine', 'ray')}; leave it out")
    if engine == "ray":
        from headstart.scoring_ray import require_ray

        require_ray()


def _partition_size(size: object, question: Question, features: int, pairs: bool) -> int:
    """Return the number of records of a partition: ``size``, or one chosen by the memory it needs."""
    if size is not None:
        return whole_number(size, option_name("partition_size"))
    if pairs:
        return _PAIRS
    return _ROWS if question.top is not None else max(1, _CELLS // max(1, features))


@contextmanager
def _divide(
    source: Source | None,
    files: list[Path] | None,
    model_rows: int,
    columns: tuple[str, ...],
    size: int,
    folder: ScoringFolder,
    facts: dict[str, Any],
) -> Iterator[Records]:
    """Yield the records in partitions, after writing the manifest or checking the one in the folder."""
    if source is None or files is not None:
        records = rows_of_model(model_rows, size) if files is None else divide_files(files, None, size)
        folder.begin({**facts, "records": records.identity, "columns": list(columns)})
        yield records
        return
    copy = folder.path / COPY
    with partial_file(copy) as temporary:  # a refused run must not replace the copy of the other one
        copy_records(source, columns, temporary)
        copied = divide_files([temporary], source.label, size)
        folder.begin({**facts, "records": copied.identity, "columns": list(columns)})
    yield divide_files([copy], source.label, size)
    copy.unlink(missing_ok=True)


def _run(job: Job, folder: ScoringFolder, engine: Engine, workers: int | None, reporter: Reporter) -> Scored:
    """Write the partitions whose files are missing."""
    total = len(job.partitions)
    missing = folder.missing(total)
    found = total - len(missing)
    if missing:
        with reporter.bar("scoring", total, found) as bar:
            if engine == "ray":
                from headstart.scoring_ray import score_on_ray

                score_on_ray(job, missing, workers, bar)
            else:
                worker = Worker(job)
                for number in missing:
                    worker.write(number)
                    bar.step()
    if folder.missing(total):
        raise HeadstartError(
            f"the workers wrote files that are not in {folder.path}; name a folder that all machines of the "
            "cluster share under the same path"
        )
    return Scored(folder.path, total, found, folder.lines(total))


@dataclass(frozen=True)
class Job:
    """The task of all workers. Folders are absolute, because workers may run on other machines."""

    model: Path
    identity: str  # the digest of the model
    question: Question
    columns: tuple[str, ...]  # the column of rows and, for pairs, that of features
    partitions: tuple[Partition, ...]
    out: Path
    device: str | None = None


class Worker:
    """A worker that opens the model once, and predicts and writes partitions."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.folder = ScoringFolder(job.out)
        self.scorer = Scorer.checked(job.model, job.question, job.identity, job.device)

    def write(self, number: int) -> None:
        """Predict a partition and write its file."""
        partition = self.job.partitions[number]
        if partition.path is None:
            predictions = self.scorer.predict_own_rows(partition.start, partition.stop)
        else:
            records = partition.read(self.job.columns)
            try:
                predictions = self.scorer.predict_records(records, partition.describe)
            except InputError as error:
                if str(error).startswith(partition.label):
                    raise
                raise type(error)(f"{partition.label}: {error}") from None
        self.folder.write(number, predictions)


class RemoteWorker:
    """A worker for Ray Data. It returns errors: Ray would wrap an exception and its message."""

    def __init__(self, job: Job) -> None:
        self._worker: Worker | None = None
        self._problem: HeadstartError | None = None
        try:
            self._worker = Worker(job)
        except HeadstartError as error:
            self._problem = error

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Write the partitions with these numbers; return their count and the error, if any."""
        numbers = [int(number) for number in batch["partition"]]
        problem = self._problem
        for number in numbers:
            try:
                if self._worker is not None and problem is None:
                    self._worker.write(number)
            except HeadstartError as error:
                problem = error
        kind, message = ("", "") if problem is None else (type(problem).__name__, str(problem))
        return {"partitions": [len(numbers)], "kind": [kind], "message": [message]}


def raise_returned(kind: str, message: str) -> None:
    """Raise the error that a worker returned, if any."""
    if kind:
        error_class = getattr(errors, kind, HeadstartError)
        raise error_class(message)


class Scorer:
    """A function that maps tables of rows or cells to predictions of a saved model.

    A large model is mapped into memory and read on demand. The class can be passed to
    ``Dataset.map_batches`` of Ray Data with ``batch_format="pyarrow"``; each worker opens the model once.

    Parameters
    ----------
    model : str or Path
        The folder of the model.
    features : list, default=None
        The features at which rows are predicted, or from which the best are chosen; all by default.
    top : int, default=None
        The number of features to return for each row, best first; by default every feature is predicted.
    by, quantile, exclude_observed, mixed_kinds
        How features are ranked; see ``Headstart.recommend``.
    level : float, default=0.9
        The probability that each interval contains the value.
    device : str, default=None
        The device that computes cells, ``"cuda"`` for a graphics card. The processor computes rankings.

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
        question = Question.from_arguments(
            features,
            top,
            by=by,
            quantile=quantile,
            exclude_observed=exclude_observed,
            mixed_kinds=mixed_kinds,
            level=level,
        )
        self._open(Path(model), question, device)
        question.check(self.state, pairs=False)

    @classmethod
    def checked(cls, model: Path, question: Question, identity: str, device: str | None = None) -> Scorer:
        """Return a scorer for a checked question; refuse a model whose digest is not ``identity``."""
        scorer = cls.__new__(cls)
        scorer._open(model, question, device)
        if model_digest(model) != identity:  # after reading: it may have changed meanwhile
            raise ModelFileError(f"{model} has changed since scoring began; start anew, into another folder")
        return scorer

    def _open(self, model: Path, question: Question, device: str | None) -> None:
        self.question, self._device = question, device_of(device)
        self.state: ModelState = Headstart.load(model, verify=False).state
        self._features = list(self.state.feature_store if question.features is None else question.features)

    def __call__(self, records: pa.Table) -> pa.Table:
        """Predict each record of a table with the columns row and feature, or row alone.

        Parameters
        ----------
        records : pyarrow.Table
            The cells to predict, or the rows.

        Returns
        -------
        pyarrow.Table
            row, feature, mean, std, low and high; with ``top`` also place and score. Cells are in the order
            of the records.

        Raises
        ------
        InputError
            If a row or feature is not in the model.
        """
        if "row" not in records.column_names:
            raise InputError(f"the records have no column 'row'; they have {records.column_names}")
        return self.predict_records(records, lambda record: f"record {record + 1}")

    def predict_records(self, records: pa.Table, describe: Callable[[int], str]) -> pa.Table:
        """Predict each record; ``describe(i)`` names record i in messages."""
        names, rows = self._number_names(records, "row", describe)
        positions = self.state.rows.positions(names)
        if "feature" in records.column_names and self.question.top is None:
            features, feature_numbers = self._number_names(records, "feature", describe)
            predictions = self._predict_cells(positions[rows], features, feature_numbers.astype(np.int64))
            return _prediction_table(
                dictionary_column(names, rows), dictionary_column(features, feature_numbers), predictions
            )
        return self._predict_rows([names[i] for i in rows], positions[rows])

    def predict_own_rows(self, start: int, stop: int) -> pa.Table:
        """Predict the model's own rows from position ``start`` up to ``stop``."""
        # One by one: a slice would read the names of all rows.
        names = [self.state.rows[i] for i in range(start, stop)]
        return self._predict_rows(names, np.arange(start, stop))

    def _number_names(
        self, records: pa.Table, noun: str, describe: Callable[[int], str]
    ) -> tuple[list[str], NDArray[np.int32]]:
        """Return the distinct names in a column, and for each record the number of its name."""
        numbering = NameNumbering(noun)
        column = records.column(noun)
        if pa.types.is_dictionary(column.type):  # it may contain names that no record has
            column = column.cast(column.type.value_type)
        numbers = numbering.number(column.combine_chunks(), describe)
        return numbering.names, numbers

    def _predict_cells(
        self, rows: NDArray[np.int64], features: list[str], feature_numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], ...]:
        """Return mean, std, low and high of the rows at ``features[feature_numbers]``: (rows,) each."""
        return predict_pairs(self.state, rows, features, feature_numbers, self.question.level, self._device)

    def _predict_rows(self, names: list[str], positions: NDArray[np.int64]) -> pa.Table:
        if self.question.top is not None:
            return self._rank_features(names, positions, self.question.top)
        rows, states = Names(names, "row"), self.state.row_store.take(positions)
        blocks = [
            self._features[start : start + _FEATURES_AT_ONCE]
            for start in range(0, len(self._features), _FEATURES_AT_ONCE)
        ]
        parts = [predict_features(self.state, rows, states, block, self._device) for block in blocks]
        return leave_out(self.state, _concatenate(rows, parts)).to_arrow(self.question.level)

    def _rank_features(self, names: list[str], positions: NDArray[np.int64], top: int) -> pa.Table:
        question, state = self.question, self.state
        best = best_features(
            state,
            [TargetRow(name, int(position)) for name, position in zip(names, positions, strict=True)],
            state.row_store.take(positions),
            top,
            Selection(question.features, question.exclude_observed),
            question.criterion,
            mixed_kinds=question.mixed_kinds,
        )
        counts = np.array([len(slots) for slots, _ in best], dtype=np.int64)
        rows = np.repeat(np.arange(len(names)), counts)
        ranks = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts) + 1
        slots = np.concatenate([*(slots for slots, _ in best), np.zeros(0, np.int64)])
        score = np.concatenate([*(score for _, score in best), np.zeros(0)])
        distinct_slots, feature_numbers = np.unique(slots, return_inverse=True)
        features = [state.feature_store.columns.features[slot].name for slot in distinct_slots]
        predictions = self._predict_cells(positions[rows], features, feature_numbers)
        table = _prediction_table(
            dictionary_column(names, rows), dictionary_column(features, feature_numbers), predictions
        )
        return table.add_column(1, "place", pa.array(ranks)).add_column(3, "score", pa.array(score))


def _prediction_table(
    rows: pa.Array, features: pa.Array, predictions: Sequence[NDArray[np.float64]]
) -> pa.Table:
    names = ["row", "feature", "mean", "std", "low", "high"]
    return pa.table([rows, features, *map(pa.array, predictions)], names=names)


def _concatenate(rows: Names, parts: list[Prediction]) -> Prediction:
    """Concatenate predictions of the same rows at different features."""
    if len(parts) == 1:
        return parts[0]
    return Prediction(
        rows,
        Names([name for part in parts for name in part.features], "feature"),
        Kinds([kind for part in parts for kind in part.kinds]),
        np.hstack([part.center for part in parts]),
        np.hstack([part.scale for part in parts]),
        np.vstack([part.interval_factors for part in parts if part.interval_factors is not None]),
        [numbers for part in parts for numbers in part.observed],
    )


class Question(Config):
    """The settings of predictions, as the manifest of a run contains them."""

    features: tuple[str, ...] | None = None  # None: all of the model
    top: int | None = None  # the best features of each row; None: all of them
    by: By = "mean"
    quantile: float = 0.9
    exclude_observed: bool = True
    mixed_kinds: bool = False
    level: float = 0.9

    @classmethod
    def from_arguments(cls, features: Any, top: object, **settings: Any) -> Question:
        """Check the arguments of the user, before any model is opened, and return the question."""
        if top is not None:
            top = whole_number(top, option_name("top"))
        Criterion(settings["by"], settings["quantile"])
        level = settings["level"]
        require_level(level)
        names = None
        if features is not None:  # each feature once
            names = tuple(dict.fromkeys(as_name(feature, "feature") for feature in as_list(features)))
        if names == ():
            raise InputError(f"{option_name('features')} gives no name; leave it out to use all")
        return cls(features=names, top=top, **settings)

    @property
    def criterion(self) -> Criterion:
        """The criterion of a ranking."""
        return Criterion(self.by, self.quantile)

    def check(self, state: ModelState, *, pairs: bool) -> None:
        """Refuse a question that a model cannot answer, before any partition is predicted."""
        if pairs and (self.top is not None or self.features is not None):
            name = "top" if self.top is not None else "features"
            raise InputError(
                f"{option_name('pairs')} names the cells to predict, so that {option_name(name)} has no "
                f"meaning; give {option_name('rows')} instead, or leave out {option_name(name)}"
            )
        named = state.feature_store.slots(self.features or ())  # raises an error for an unknown name
        if self.top is None:
            return
        columns = state.feature_store.columns
        slots = columns.used_slots if self.features is None else np.array(named, dtype=np.int64)
        if self.by != "information" and not self.mixed_kinds and len(slots):
            require_same_units(columns, slots, option_name("top"))
        if self.exclude_observed:
            require_contexts(columns, slots)


class ScoringFolder:
    """A folder of predictions with a manifest, perhaps of an interrupted run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, number: int) -> Path:
        """Return the file of a partition."""
        return self.path / f"part-{number:06d}.parquet"

    def require_no_other_files(self) -> None:
        """Refuse a folder with other files, which readers of the folder would mix with predictions."""
        if self.path.is_dir() and not (self.path / MANIFEST).exists():
            unfinished = left_over(self.path, _OUTPUT_FILES)
            others = [file.name for file in self.path.iterdir() if file not in unfinished]
            if others:
                raise InputError(
                    f"{self.path} holds other files, such as {min(others)!r}; name a new or empty folder"
                )
        elif self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; name a folder")

    def begin(self, facts: dict[str, Any]) -> None:
        """Write the manifest of a run, or refuse to continue a run with another manifest."""
        facts = {"format": _FORMAT, **facts}
        manifest = self.path / MANIFEST
        if not manifest.exists():
            write_json(manifest, facts)
            return
        before = read_json(manifest)
        before = before if isinstance(before, dict) else {}
        different = [name for name in facts if before.get(name) != facts[name]]
        if different:
            raise InputError(
                f"{self.path} holds predictions of {_difference(different[0], before, facts)}; name another "
                "folder, or remove this one to start anew"
            )

    def tidy(self) -> None:
        """Remove unfinished files of killed writers; the folder must be locked."""
        for file in left_over(self.path, _OUTPUT_FILES):
            file.unlink(missing_ok=True)

    def missing(self, partitions: int) -> list[int]:
        """Return the numbers of the partitions whose files do not exist or cannot be read."""
        return [number for number in range(partitions) if self._count_lines(number) is None]

    def lines(self, partitions: int) -> int:
        """Return the number of predictions in all partitions."""
        return sum(self._count_lines(number) or 0 for number in range(partitions))

    def _count_lines(self, number: int) -> int | None:
        try:
            return int(pq.read_metadata(self.file(number)).num_rows)
        except (OSError, pa.ArrowException):
            return None

    def write(self, number: int, predictions: pa.Table) -> None:
        """Write the predictions of a partition, in one step."""
        with partial_file(self.file(number)) as temporary:
            pq.write_table(predictions, temporary, compression="zstd")


def _difference(name: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe the entry ``name`` in which two manifests differ."""
    if name != "question":
        return _DIFFERENCES.get(name, f"another {name}")
    old, new = before.get(name), now[name]
    old = old if isinstance(old, dict) else {}
    changed = [key for key in new if old.get(key) != new[key]]
    if "features" in changed:
        return "other features"
    return "another question: " + ", ".join(f"{key} was {old.get(key)} and is {new[key]}" for key in changed)


@dataclass(frozen=True)
class Partition:
    """Consecutive records of one file, or consecutive rows of the model."""

    path: Path | None  # a Parquet file; None: the rows of the model
    label: str  # the name of the file in messages
    start: int
    stop: int

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Read these columns of the records as ``row`` and ``feature``, from their row groups only."""
        if self.path is None:
            raise ValueError("the model's own rows lie in no file")
        file_columns, parts = ParquetSource(self.path).own(columns), []
        try:
            with pq.ParquetFile(self.path) as file:
                sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
                begins = list(itertools.accumulate(sizes, initial=0))
                needed = [
                    i for i in range(len(sizes)) if begins[i] < self.stop and self.start < begins[i + 1]
                ]
                position = begins[needed[0]]
                for batch in file.iter_batches(_RECORDS_AT_ONCE, row_groups=needed, columns=file_columns):
                    low, high = max(self.start - position, 0), min(self.stop - position, len(batch))
                    parts += [batch.slice(low, high - low)] if low < high else []
                    position += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.label} cannot be read: {error}") from error
        records = pa.Table.from_batches(parts).select(file_columns)
        return records.rename_columns(["row", "feature"][: len(columns)])

    def describe(self, record: int) -> str:
        """Return the file and number of a record, for messages."""
        return f"{self.label}, record {self.start + record + 1}"


@dataclass(frozen=True)
class Records:
    """All records in partitions, and a digest of them."""

    partitions: tuple[Partition, ...]
    identity: str  # the digest: equal for equal records only


def open_records(data: object, columns: Sequence[str], form: TextFormat, argument: str) -> Source:
    """Open the records ``data`` of ``argument``: a path, a frame or a list of names of rows."""
    is_list = not isinstance(data, str) and isinstance(data, (Sequence, np.ndarray))
    if is_list and len(columns) > 1:
        raise InputError(
            f"{option_name(argument)} takes a file, a folder or a frame with the columns {columns[0]!r} and "
            f"{columns[1]!r}; got {type(data).__name__}"
        )
    if is_list:
        names = [as_name(name, "row") for name in data]  # type: ignore[attr-defined]
        data = pa.table({columns[0]: pa.array(names, pa.string())})
    source = open_source(data, columns, form)
    if is_list:
        source.label = option_name(argument)
    for column, name in zip(columns, ("row", "feature"), strict=False):
        source.require(column, name)
    return source


def rows_of_model(count: int, size: int) -> Records:
    """Divide the ``count`` rows of the model into partitions of at most ``size``."""
    return Records(tuple(_cut(None, "the model", count, size)), "all rows of the model")


def parquet_files(data: object) -> list[Path] | None:
    """Return the Parquet files of the records; None if the records must first be copied into one."""
    if not isinstance(data, str | os.PathLike):
        return None
    path = Path(data).resolve()
    if path.is_dir():
        return sorted(file for file in path.iterdir() if not file.name.startswith((".", "_")))
    return [path] if path.name.lower().endswith(PARQUET) else None


def divide_files(files: Sequence[Path], label: str | None, size: int) -> Records:
    """Divide the records of Parquet files into partitions of at most ``size``, each within one file."""
    partitions, digest = [], hashlib.sha256()
    for path in files:
        partitions += _cut(path, label or str(path), pq.read_metadata(path).num_rows, size)
        with path.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    if not partitions:
        raise InputError(f"{label or files[0]} has no records")
    return Records(tuple(partitions), digest.hexdigest())


def copy_records(source: Source, columns: Sequence[str], to: Path) -> None:
    """Write the records of any source to a Parquet file, block by block."""
    writer: pq.ParquetWriter | None = None
    try:
        for batch in source.batches(columns, ()):
            if writer is None:
                writer = pq.ParquetWriter(to, batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise InputError(f"{source.label} has no records")


def _cut(path: Path | None, label: str, count: int, size: int) -> list[Partition]:
    starts = range(0, count, size)
    return [Partition(path, label, start, min(start + size, count)) for start in starts]
