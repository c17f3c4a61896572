"""Observations shared out over processes: each gets a stretch of the sorted rows, with all they observed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.errors import InputError, argument
from headstart.table.names import Names
from headstart.table.numbering import sort_key, sorted_names
from headstart.table.readers import Observations

_SAMPLE = 4096  # names of each process from which the stretches are chosen


def shared_out(read: Observations, label: str) -> Observations:
    """Give each process the observations of its own rows, out of what each has read in its own share.

    The rows of a process follow those of the one before. Its observations stay in the order of the source,
    and it knows the features of all processes.
    """
    if not crew().launched:
        return read
    _require_enough(read, label)
    features = sorted_names(name for names in crew().texts(read.features) for name in names)
    own_features = Names(features, "feature").positions(read.features)
    names = sorted_names(read.rows)
    lines = Names(names, "row").positions(read.rows)[read.row_numbers]
    cuts = _cuts(names, np.bincount(lines, minlength=len(names)))
    owner = np.searchsorted(cuts[1:-1], lines, side="right")
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=crew().size))[:-1]

    def sent(numbers: NDArray[Any]) -> list[torch.Tensor]:
        parts = np.split(numbers[order], ends)
        return crew().exchanged([torch.from_numpy(np.ascontiguousarray(part)) for part in parts])

    arrived_names = crew().exchanged_texts([names[start:stop] for start, stop in pairwise(cuts)])
    rows = sorted_names(name for part in arrived_names for name in part)
    known = Names(rows, "row")
    places = sent((lines - np.asarray(cuts)[owner]).astype(np.int32))
    numbers = [
        known.positions(part)[place.numpy()] for part, place in zip(arrived_names, places, strict=True)
    ]
    # All processes must send numbers of one type.
    values = read.values
    if crew().count(float(values.dtype != np.float32)):
        values = values.astype(np.float64)
    feature_numbers = torch.cat(sent(own_features[read.feature_numbers].astype(np.int32))).numpy()
    notes = list(dict.fromkeys(note for notes in crew().texts(read.notes) for note in notes))
    return replace(
        read,
        rows=rows,
        features=features,
        row_numbers=np.concatenate(numbers).astype(np.int32),
        feature_numbers=feature_numbers,
        values=torch.cat(sent(values)).numpy(),
        notes=tuple(notes),
    )


def _require_enough(read: Observations, label: str) -> None:
    if read.times is not None:
        raise InputError(f"{argument('time')} is not supported under torchrun; leave it out")
    if crew().count(len(read.values)) == 0:
        raise InputError(f"{label} contains no observations; at least one is needed")


def _cuts(names: list[str], counts: NDArray[np.int64]) -> list[int]:
    """Where the stretches of rows begin and end among this process's own names, which are sorted.

    They are chosen such that all stretches have about as many rows and observations.
    """
    weights = counts + 1.0
    groups = np.array_split(np.arange(len(names)), min(_SAMPLE, max(1, len(names))))
    some = [(names[group[-1]], float(weights[group].sum())) for group in groups if len(group)]
    every: dict[str, float] = {}
    for found, own in zip(
        crew().texts([name for name, _ in some]), crew().texts([str(w) for _, w in some]), strict=True
    ):
        for name, weight in zip(found, own, strict=True):
            every[name] = every.get(name, 0.0) + float(weight)
    ordered = sorted_names(every)
    if len(ordered) < crew().size:
        raise InputError(
            f"the table has fewer rows than there are processes ({crew().size}); start fewer of them"
        )
    until = np.cumsum([every[name] for name in ordered])
    # Each stretch ends with a name of the sample, and no two of them with the same one.
    wanted = np.searchsorted(until, until[-1] * np.arange(1, crew().size) / crew().size)
    least = np.arange(crew().size - 1)
    last = np.minimum(np.maximum.accumulate(wanted - least) + least, len(ordered) - crew().size + least)
    return [
        0,
        *(bisect_right(names, sort_key(ordered[i]), key=sort_key) for i in last.tolist()),
        len(names),
    ]
