"""Divide the rows of a table among processes: the only module of ``table`` that communicates.

Each process reads a share of the source. ``shard_rows`` then gives each process all observations of
consecutive rows. Statistics of features that are sums are added up; medians and distinct values need all
observations of a feature in one process, which ``FeatureExchange`` provides. All processes must call these
functions in the same order. In a single process every function returns its argument.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.distributed import process_group, rows_are_sharded
from headstart.errors import InputError, option_name
from headstart.table.cells import Cells, offsets
from headstart.table.names import Names, sort_key, sorted_names

if TYPE_CHECKING:
    from headstart.table.reading import Observations
    from headstart.table.sources import Source

Number = TypeVar("Number", bound=np.generic)

_SAMPLE_SIZE = 4096  # names per process from which the first rows of the shards are chosen


# -- statistics of all rows ---------------------------------------------------------------------------


def global_count(count: int) -> int:
    """Sum a number of local items over all processes."""
    return process_group().span(count)[1]


def global_sum(numbers: NDArray[Number]) -> NDArray[Number]:
    """Sum an array of the same shape over all processes."""
    return process_group().all_reduce_sum(torch.from_numpy(numbers)).numpy()


def global_max(numbers: NDArray[Number]) -> NDArray[Number]:
    """Compute the elementwise maximum of an array of the same shape over all processes."""
    return process_group().all_reduce_max(torch.from_numpy(numbers)).numpy()


def gather(numbers: NDArray[Number]) -> NDArray[Number]:
    """Concatenate the arrays of all processes."""
    return process_group().all_gather(torch.from_numpy(numbers)).numpy()


# -- all observations of a feature in one process -----------------------------------------------------


class FeatureExchange:
    """Exchange numbers of observations so that each process has all observations of some features.

    Parameters
    ----------
    index : Tensor of shape (n,)
        The feature of each observation of this process.
    width : int
        The number of features.

    Attributes
    ----------
    features : slice
        The features of this process; they follow the features of the process before.
    counts : Tensor of shape (features of this process,)
        The number of observations of each of these features.
    """

    def __init__(self, index: Tensor, width: int) -> None:
        group = process_group()
        counts = group.all_reduce_sum(torch.bincount(index, minlength=width))
        order: Tensor | slice = slice(None)  # by receiver
        self.features, self._sizes = slice(0, width), [len(index)]
        if not group.is_single:
            # A feature belongs to the process in whose share of all observations its own begin.
            start = (counts.cumsum(0) - counts).double() / max(1, int(counts.sum()))
            owner = (start * group.size).long().clamp(max=group.size - 1)
            local = torch.nonzero(owner == group.rank)[:, 0]
            self.features = slice(int(local[0]), int(local[-1]) + 1) if len(local) else slice(0, 0)
            receiver = owner[index]
            order = torch.argsort(receiver, stable=True)
            self._sizes = torch.bincount(receiver, minlength=group.size).tolist()
        self._order = order
        received = group.all_to_all(torch.split(index[order], self._sizes))
        self._received_sizes = [len(part) for part in received]
        # Stable: the rows of a feature stay in the order of the processes, which is the order of all rows.
        self._by_feature = torch.argsort(torch.cat(received), stable=True)
        self.counts = counts[self.features]

    def send(self, numbers: Tensor) -> Tensor:
        """Send numbers of this process's observations (n,) to the processes of their features.

        Returns the numbers received, sorted by (feature, row).
        """
        received = process_group().all_to_all(torch.split(numbers[self._order], self._sizes))
        return torch.cat(received)[self._by_feature]

    def send_back(self, numbers: Tensor) -> Tensor:
        """Send numbers in the order of ``send`` to the processes of their rows: (n,)."""
        unsorted = torch.empty_like(numbers)
        unsorted[self._by_feature] = numbers
        received = torch.cat(process_group().all_to_all(torch.split(unsorted, self._received_sizes)))
        result = torch.empty_like(received)
        result[self._order] = received
        return result

    def cells(self, values: Tensor) -> Cells:
        """Return cells with one line per feature of this process, with ``values`` but without row numbers."""
        return Cells(offsets(self.counts), torch.zeros(len(values), dtype=torch.int64), values, 1)


# -- reading ------------------------------------------------------------------------------------------


def local_source(source: Source) -> Source:
    """Return the share of a source that this process reads."""
    return source.part(process_group().rank, process_group().size) if rows_are_sharded() else source


def shard_rows(observations: Observations, label: str) -> Observations:
    """Give each process all observations of consecutive rows, from the share that each has read.

    The observations stay in the order of the source, and every process knows all features. ``label`` names
    the source in messages.
    """
    if not rows_are_sharded():
        return observations
    group = process_group()
    if observations.times is not None:
        raise InputError(f"{option_name('time')} is not supported under torchrun; leave it out")
    if global_count(len(observations.values)) == 0:
        raise InputError(f"{label} contains no observations; at least one is needed")
    features = sorted_names(name for names in group.all_gather_texts(observations.features) for name in names)
    feature_positions = Names(features, "feature").positions(observations.features)
    names = sorted_names(observations.rows)
    lines = Names(names, "row").positions(observations.rows)[observations.row_numbers]
    cuts = _cut_rows(names, np.bincount(lines, minlength=len(names)))
    owner = np.searchsorted(cuts[1:-1], lines, side="right")
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=group.size))[:-1]

    def send(numbers: NDArray[Any]) -> list[Tensor]:
        parts = np.split(numbers[order], ends)
        return group.all_to_all([torch.from_numpy(np.ascontiguousarray(part)) for part in parts])

    received_names = group.all_to_all_texts([names[start:stop] for start, stop in pairwise(cuts)])
    rows = Names(sorted_names(name for part in received_names for name in part), "row")
    received_lines = send((lines - np.asarray(cuts)[owner]).astype(np.int32))
    row_numbers = [
        rows.positions(part)[positions.numpy()]
        for part, positions in zip(received_names, received_lines, strict=True)
    ]
    values = observations.values
    if global_count(int(values.dtype != np.float32)):  # all processes must send numbers of one type
        values = values.astype(np.float64)
    feature_numbers = send(feature_positions[observations.feature_numbers].astype(np.int32))
    notes = dict.fromkeys(note for notes in group.all_gather_texts(observations.notes) for note in notes)
    return replace(
        observations,
        rows=list(rows),
        features=features,
        row_numbers=np.concatenate(row_numbers).astype(np.int32),
        feature_numbers=torch.cat(feature_numbers).numpy(),
        values=torch.cat(send(values)).numpy(),
        weights=None if observations.weights is None else torch.cat(send(observations.weights)).numpy(),
        notes=tuple(notes),
    )


def _cut_rows(names: list[str], counts: NDArray[np.int64]) -> list[int]:
    """Return the positions where the shards begin among the sorted ``names`` of this process, and their end.

    ``counts`` (names,) are the observations of each row. The shards have about equal numbers of rows and
    observations, estimated from a sample of the names of all processes.
    """
    group = process_group()
    weights = counts + 1.0
    parts = np.array_split(np.arange(len(names)), min(_SAMPLE_SIZE, max(1, len(names))))
    sample = [(names[part[-1]], float(weights[part].sum())) for part in parts if len(part)]
    totals: dict[str, float] = {}
    for sampled_names, sampled_weights in zip(
        group.all_gather_texts([name for name, _ in sample]),
        group.all_gather_texts([str(weight) for _, weight in sample]),
        strict=True,
    ):
        for name, weight in zip(sampled_names, sampled_weights, strict=True):
            totals[name] = totals.get(name, 0.0) + float(weight)
    ordered = sorted_names(totals)
    if len(ordered) < group.size:
        raise InputError(
            f"the table has fewer rows than there are processes ({group.size}); start fewer of them"
        )
    cumulative = np.cumsum([totals[name] for name in ordered])
    # Each shard ends with a name of the sample, and no two shards end with the same name.
    wanted = np.searchsorted(cumulative, cumulative[-1] * np.arange(1, group.size) / group.size)
    least = np.arange(group.size - 1)
    last = np.minimum(np.maximum.accumulate(wanted - least) + least, len(ordered) - group.size + least)
    cuts = [bisect_right(names, sort_key(ordered[i]), key=sort_key) for i in last.tolist()]
    return [0, *cuts, len(names)]
