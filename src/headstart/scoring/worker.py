"""What each worker does: predict partitions and write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart import errors
from headstart.errors import HeadstartError, InputError
from headstart.scoring.folder import ScoringFolder
from headstart.scoring.partitions import Partition
from headstart.scoring.question import Question
from headstart.scoring.scorer import Scorer


@dataclass(frozen=True)
class Job:
    """All that a worker has to know. The folders are absolute, because workers run elsewhere."""

    model: Path
    identity: str  # of the model
    question: Question
    columns: tuple[str, ...]  # of row and, where single cells are asked for, of feature
    partitions: tuple[Partition, ...]
    out: Path
    device: str | None = None


class Worker:
    """Opens the model once, and writes the predictions of partitions."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.folder = ScoringFolder(job.out)
        self.scorer = Scorer.checked(job.model, job.question, job.identity, job.device)

    def write(self, number: int) -> None:
        """Predict a partition and write its file."""
        partition = self.job.partitions[number]
        if partition.path is None:
            found = self.scorer.answer_own(partition.start, partition.stop)
        else:
            records = partition.read(self.job.columns)
            try:
                found = self.scorer.answer(records, partition.place)
            except InputError as error:
                if str(error).startswith(partition.label):
                    raise
                raise type(error)(f"{partition.label}: {error}") from None
        self.folder.write(number, found)


class RemoteWorker:
    """A worker as Ray Data calls it: what goes wrong is returned, so that its message arrives as it is."""

    def __init__(self, job: Job) -> None:
        self._worker: Worker | None = None
        self._problem: HeadstartError | None = None
        try:
            self._worker = Worker(job)
        except HeadstartError as error:
            self._problem = error

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Write the partitions of these numbers."""
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


def raise_again(kind: str, message: str) -> None:
    """Raise the error that a worker met, if any."""
    if kind:
        family = getattr(errors, kind, HeadstartError)
        raise family(message)
