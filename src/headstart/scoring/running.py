"""A run of scoring: what is asked is checked, missing partitions are predicted and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from headstart.core.devices import device_of
from headstart.errors import HeadstartError, InputError, argument, did_you_mean
from headstart.locking import locked
from headstart.model import Headstart
from headstart.model.asking.scoring import By
from headstart.model.inputs.given import whole_number
from headstart.model.saving.identity import identity_of
from headstart.progress import Bar, Reporter
from headstart.scoring.cluster import require_ray, score_on_ray
from headstart.scoring.folder import COPY, ScoringFolder
from headstart.scoring.partitions import Records, copy_records, opened, own_rows, parquet_files, records_of
from headstart.scoring.question import Question
from headstart.scoring.scored import Scored
from headstart.scoring.worker import Job, Worker
from headstart.storage import partial_file
from headstart.table.sources import Source, TextFormat

Engine = Literal["local", "ray"]
_CELLS = 1 << 22  # predictions of a partition: 270 MB while they are computed
_PAIRS = 1 << 19
_ROWS = 1 << 12  # of a partition in which the best features of rows are found


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

    The work is parted into partitions. Each becomes one file, which is written in one step, so that a run
    that was interrupted goes on where it stopped when it is called again. Memory does not grow with the
    number of records. Both engines write the same files.

    Parameters
    ----------
    model : str or Path
        The folder of a saved model. It must not change during the run.
    out : str or Path
        A new or empty folder, or that of an interrupted run.
    pairs : path or frame, default=None
        The cells to predict: a CSV or Parquet file, a folder of Parquet files or a frame, with the columns
        row and feature. Other columns are passed over.
    rows : path, frame or list, default=None
        The rows to predict: the same with a column row, or a list of names; by default, without pairs, all
        rows of the model.
    features : list, default=None
        The features at which rows are predicted, or from which the best are chosen; all by default.
    top : int, default=None
        How many features to name for each row, best first; by default every feature is predicted.
    by, quantile, exclude_observed, mixed_kinds
        How the best features are found; see ``Headstart.recommend``.
    level : float, default=0.9
        The probability that each interval contains the value.
    engine : {"local", "ray"}, default="local"
        This process, or workers of Ray: those of the cluster that runs or that ``RAY_ADDRESS`` names,
        otherwise of this machine. All of them must see the folders under the same path.
    workers : int, default=None
        How many workers Ray is asked for; as many as it has processors by default.
    partition_size : int, default=None
        How many records a partition has at most; by default such that a worker needs some hundred MB.
    device : str, default=None
        Where cells are computed, ``"cuda"`` for graphics cards, one for each worker of Ray. Rankings are
        found by the processor.
    row, feature : str, default=None
        The columns of the records, "row" and "feature" by default.
    separator, encoding : str, default=None
        Of text files, as in ``Table.read``.
    quiet : bool, default=False
        Whether to hide progress.

    Returns
    -------
    Scored
        How much was written. Files have the columns row, feature, mean, std, low and high; of the best
        features also place and score.

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
    place = Path(model).resolve() if isinstance(model, str | Path) else None
    if place is None:
        raise InputError(f"score() takes the folder of a saved model; got {type(model).__name__}")
    _require_engine(engine, workers)
    if device is not None and engine == "local":  # workers of Ray may be on machines that have others
        device_of(device)
    settings = {"exclude_observed": exclude_observed, "mixed_kinds": mixed_kinds, "level": level}
    question = Question.asked(features, top, by=by, quantile=quantile, **settings)
    if pairs is not None and rows is not None:
        raise InputError(f"give either {argument('pairs')} or {argument('rows')}, not both")
    columns = (row or "row",) if pairs is None else (row or "row", feature or "feature")
    given, what = (pairs, "pairs") if pairs is not None else (rows, "rows")
    form = TextFormat(separator, None, encoding)
    source = None if given is None else opened(given, columns, form, what)
    identity = identity_of(place)
    fitted = Headstart.load(place)._fitted  # all of it is read once, here; workers only map it
    question.check(fitted, pairs=pairs is not None)
    size = _size(partition_size, question, len(question.features or fitted.catalogue), pairs is not None)
    folder = ScoringFolder(Path(out).resolve())
    folder.require_ours()
    busy = f"{out} is being written by another run; wait until it ends, or name another folder"
    with locked(folder.path, create=True, busy=busy):
        folder.tidy()
        facts = {"model": identity, "question": question.model_dump(mode="json"), "partition_size": size}
        files = parquet_files(given)
        with _begun(source, files, len(fitted.rows), columns, size, folder, facts) as records:
            job = Job(place, identity, question, columns, records.partitions, folder.path, device)
            return _run(job, folder, engine, workers, Reporter(quiet))


def _require_engine(engine: object, workers: object) -> None:
    if engine not in get_args(Engine):
        hint = did_you_mean(str(engine), get_args(Engine))
        raise InputError(f"{argument('engine')} must be 'local' or 'ray'; got {engine!r}{hint}")
    if workers is not None:
        whole_number(workers, argument("workers"))
        if engine == "local":
            raise InputError(f"{argument('workers')} is for {argument('engine', 'ray')}; leave it out")
    if engine == "ray":
        require_ray()


def _size(given: object, question: Question, features: int, pairs: bool) -> int:
    if given is not None:
        return whole_number(given, argument("partition_size"))
    if pairs:
        return _PAIRS
    return _ROWS if question.top is not None else max(1, _CELLS // max(1, features))


@contextmanager
def _begun(
    source: Source | None,
    files: list[Path] | None,
    own: int,
    columns: tuple[str, ...],
    size: int,
    folder: ScoringFolder,
    facts: dict[str, Any],
) -> Iterator[Records]:
    """The records in partitions, after the manifest was written or found to be the same."""
    if source is None or files is not None:
        records = own_rows(own, size) if files is None else records_of(files, None, size)
        folder.begin({**facts, "records": records.identity, "columns": list(columns)})
        yield records
        return
    copy = folder.path / COPY
    with partial_file(copy) as temporary:  # so that a refused run leaves the copy of the other one alone
        copy_records(source, columns, temporary)
        copied = records_of([temporary], source.label, size)
        folder.begin({**facts, "records": copied.identity, "columns": list(columns)})
    yield records_of([copy], source.label, size)
    copy.unlink(missing_ok=True)


def _run(job: Job, folder: ScoringFolder, engine: Engine, workers: int | None, reporter: Reporter) -> Scored:
    total = len(job.partitions)
    missing = folder.missing(total)
    found = total - len(missing)
    if missing:
        with reporter.bar("scoring", total, found) as bar:
            if engine == "ray":
                score_on_ray(job, missing, workers, bar)
            else:
                _score_here(job, missing, bar)
    if folder.missing(total):
        raise HeadstartError(
            f"the workers wrote files that are not in {folder.path}; name a folder that all machines of the "
            "cluster share under the same path"
        )
    return Scored(folder.path, total, found, folder.lines(total))


def _score_here(job: Job, numbers: Sequence[int], bar: Bar) -> None:
    worker = Worker(job)
    for number in numbers:
        worker.write(number)
        bar.step()
