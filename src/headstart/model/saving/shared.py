"""The weights of a model whose rows several processes have; the first one writes them, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from headstart.crew import crew
from headstart.model.parts.fitted import Fitted
from headstart.model.saving.format import tensors_of
from headstart.model.saving.weights import write_weights
from headstart.streaming import Layout, ordered

_AT_ONCE = 2**22  # observations of features that are brought together at a time
_BY_ROW = ("states/", "knowledge/states/", "knowledge/indptr", "knowledge/index", "knowledge/values")
_CONTEXTS = ("contexts/rows", "contexts/values")


def write_shared_weights(fitted: Fitted, folder: Path) -> tuple[str, str, int]:
    """Write the weights of all processes, which all call this; returns the file's name, digest and size.

    In no process there is more of the others' rows than a block. Only the first one knows the answer.
    """
    tensors = _placed(tensors_of(fitted), len(fitted.rows))
    counts = tensors["contexts/counts"]
    tensors["contexts/counts"] = crew().total(counts)
    layouts = {
        name: Layout(
            each.dtype, (crew().span(len(each))[1], *each.shape[1:]) if _is_shared(name) else each.shape
        )
        for name, each in tensors.items()
    }
    blocks = (block for name in ordered(layouts) for block in _blocks(name, tensors[name], counts))
    if not crew().leads:
        for _ in blocks:  # sends what this process has
            pass
        return "", "", 0
    return write_weights(folder, layouts, blocks)


def _is_shared(name: str) -> bool:
    return name.startswith(_BY_ROW) or name in _CONTEXTS


def _placed(tensors: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """The tensors of this process, with rows and observations numbered as in the whole model."""
    start, _ = crew().span(rows)
    before, _ = crew().span(len(tensors["knowledge/index"]))
    indptr = tensors["knowledge/indptr"] + before
    return tensors | {
        "contexts/rows": tensors["contexts/rows"] + start,
        "knowledge/indptr": indptr if crew().leads else indptr[1:],
    }


def _blocks(name: str, part: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """A tensor of the whole model in blocks, in the first process; the others send their parts."""
    if name in _CONTEXTS:
        yield from _contexts(part, counts)
    elif _is_shared(name):
        yield from crew().collected(part)
    elif crew().leads:
        yield part


def _contexts(part: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """What there is of the contexts of all features, one after the other, rows in their order."""
    ends = counts.cumsum(0)
    marks = torch.div(crew().total(counts).cumsum(0), _AT_ONCE, rounding_mode="floor")
    cuts = [0, *(torch.nonzero(marks.diff())[:, 0] + 1).tolist(), len(counts)]
    for first, last in pairwise(cuts):
        begin, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
        lines = torch.repeat_interleave(counts[first:last])
        every = list(crew().collected(part[begin:end])), list(crew().collected(lines))
        if crew().leads and every[0]:
            yield torch.cat(every[0])[torch.argsort(torch.cat(every[1]), stable=True)]
