"""Save a model to a folder and load it.

``model.json`` names the weights file, which carries the hash of its content in its name, and holds a
checksum of itself. Saving writes the new weights beside the old, then replaces ``model.json`` in one step,
then removes the old weights: at any moment the folder holds one whole model.

Beside the weights of a large model lies a file by which it is opened quickly (``quick``).
A change of a saved model is a line in its journal, which carries the checksum of ``model.json`` in its name.
When the journal has become long, the whole model is saved, without one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.distributed import process_group
from headstart.errors import InputError, ModelFileError, join_names
from headstart.files import (
    CAN_LOCK,
    FolderLock,
    Layout,
    explain_storage_error,
    is_partial,
    json_bytes,
    left_over,
    lock_folder,
    order_tensors,
    sync_folder,
    write_json,
    write_tensors,
)
from headstart.model.fitting import with_whole_shots
from headstart.model.saving.export import table_of
from headstart.model.saving.format import checksum, facts_of, tensors_of
from headstart.model.saving.journal import Call, append, journal_name, line_of
from headstart.model.saving.lazy import QUICK, write_quick
from headstart.model.saving.loading import (
    INDEX,
    WEIGHTS,
    OpenModel,
    changing_files,
    load,
    open_model,
    require_model,
)
from headstart.model.state import ModelState
from headstart.table import Table

_UNNAMED = f"weights-{'0' * 16}.safetensors"  # until the hash of its content is known


def write_weights(
    folder: Path, layouts: Mapping[str, Layout], pieces: Iterable[Tensor]
) -> tuple[str, str, int]:
    """Write tensors of these layouts, given in pieces in their order; returns name, digest and size."""
    digest, size = write_tensors(folder / _UNNAMED, layouts, pieces)
    name = f"weights-{digest[:16]}.safetensors"
    with explain_storage_error(folder / name):
        os.replace(folder / _UNNAMED, folder / name)
        sync_folder(folder)
    return name, digest, size


def identity_of(path: Path) -> str:
    """A short text that differs between models, also after a change of one; the same for copies."""
    try:
        content = b"".join(each.read_bytes() for each in changing_files(path))
    except OSError:
        raise ModelFileError(f"{path} is not a saved model: {INDEX} cannot be read") from None
    return hashlib.sha256(content).hexdigest()[:12]


def file_stamp(path: Path) -> tuple[tuple[int, int, int], ...] | None:
    """What changes when a model is replaced or changed; None if there is none."""
    try:
        found = [each.stat() for each in changing_files(path)]
    except OSError:
        return None
    return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


_AT_ONCE = 2**22  # observations of features that are brought together at a time

_BY_ROW = ("states/", "knowledge/states/", "knowledge/indptr", "knowledge/index", "knowledge/values")

_CONTEXTS = ("contexts/rows", "contexts/values")


def write_shared_weights(fitted: ModelState, folder: Path) -> tuple[str, str, int]:
    """Write the weights of all processes, which all call this; returns the file's name, digest and size.

    In no process there is more of the others' rows than a block. Only the first one knows the answer.
    """
    tensors = _placed(tensors_of(fitted), len(fitted.rows))
    counts = tensors["contexts/counts"]
    tensors["contexts/counts"] = process_group().all_reduce_sum(counts)
    layouts = {
        name: Layout(
            each.dtype,
            (process_group().span(len(each))[1], *each.shape[1:]) if _is_shared(name) else each.shape,
        )
        for name, each in tensors.items()
    }
    blocks = (block for name in order_tensors(layouts) for block in _blocks(name, tensors[name], counts))
    if not process_group().is_main:
        for _ in blocks:  # sends what this process has
            pass
        return "", "", 0
    return write_weights(folder, layouts, blocks)


def _is_shared(name: str) -> bool:
    return name.startswith(_BY_ROW) or name in _CONTEXTS


def _placed(tensors: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """The tensors of this process, with rows and observations numbered as in the whole model."""
    start, _ = process_group().span(rows)
    before, _ = process_group().span(len(tensors["knowledge/index"]))
    indptr = tensors["knowledge/indptr"] + before
    return tensors | {
        "contexts/rows": tensors["contexts/rows"] + start,
        "knowledge/indptr": indptr if process_group().is_main else indptr[1:],
    }


def _blocks(name: str, part: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """A tensor of the whole model in blocks, in the first process; the others send their parts."""
    if name in _CONTEXTS:
        yield from _contexts(part, counts)
    elif _is_shared(name):
        yield from process_group().gather_blocks(part)
    elif process_group().is_main:
        yield part


def _contexts(part: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """What there is of the contexts of all features, one after the other, rows in their order."""
    ends = counts.cumsum(0)
    marks = torch.div(process_group().all_reduce_sum(counts).cumsum(0), _AT_ONCE, rounding_mode="floor")
    cuts = [0, *(torch.nonzero(marks.diff())[:, 0] + 1).tolist(), len(counts)]
    for first, last in pairwise(cuts):
        begin, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
        lines = torch.repeat_interleave(counts[first:last])
        every = (
            list(process_group().gather_blocks(part[begin:end])),
            list(process_group().gather_blocks(lines)),
        )
        if process_group().is_main and every[0]:
            yield torch.cat(every[0])[torch.argsort(torch.cat(every[1]), stable=True)]


_JOURNAL = re.compile(r"journal-[0-9a-f]{16}\.jsonl")

_OURS = re.compile(rf"{re.escape(INDEX)}|{WEIGHTS.pattern}|{_JOURNAL.pattern}|{QUICK.pattern}")

_QUICK_FROM = 2**24  # bytes of weights from which on a model is opened without reading all of it

_MOST_CHANGES = 128  # in a journal: each is made again whenever the model is loaded

_WHOLE = {
    "remove_row",
    "rename_feature",
}  # of large models: slow whenever they are replayed

_MOST_BYTES, _MOST_SHARE = 2**22, 4  # a journal may have so many, or that share of the weights


def check_place(path: Path) -> None:
    """Refuse a place that holds anything but a model, or what is left of one whose first save was killed."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a model is saved as a folder")
    if not path.is_dir() or (path / INDEX).exists():
        return
    # They are listed once: others may save a model here at the same time.
    names = sorted(each.name for each in path.iterdir())
    others = [name for name in names if not _OURS.fullmatch(name) and not is_partial(name, _OURS)]
    if others:
        raise InputError(
            f"{path} holds other things ({join_names(others, 3)}) and no model; name another folder"
        )


def save(fitted: Callable[[], ModelState], path: Path, owner: object = None) -> None:
    """Write a model to a folder, in the place of an older one if there is one.

    The model is asked for once the folder is locked: of two threads that save, the later has the newer one.
    Where several processes have a part of the model each, all of them call this, and the first one writes.
    """
    if process_group().launched:
        process_group().all_or_none(lambda: check_place(path) if process_group().is_main else None)
        with lock_folder(path, owner, create=True) if process_group().is_main else nullcontext():
            _write_together(with_whole_shots(fitted()), path)
            process_group().barrier()
        return
    check_place(path)
    with lock_folder(path, owner, create=True):
        check_place(path)
        _write(fitted(), path)


@contextmanager
def open_for_changes(path: Path) -> Iterator[tuple[OpenModel, FolderLock]]:
    """Read a model and keep the folder locked while the block changes it; other writers wait until then."""
    require_model(path)  # before it is locked
    with lock_folder(path) as lock:
        yield open_model(path, verify=False), lock


def append_changes(before: OpenModel, calls: list[Call]) -> bool:
    """Write to the journal which calls have changed a model whose folder is locked.

    False if nothing was written, because all of the model is to be saved: its journal would be too long, or
    slow to replay.
    """
    journal = before.journal
    if journal is None or (before.size >= _QUICK_FROM and any(call["verb"] in _WHOLE for call in calls)):
        return False
    if not calls:
        return True
    line = line_of(journal.digest, calls)
    most = max(_MOST_BYTES, before.size // _MOST_SHARE)
    if len(journal.changes) >= _MOST_CHANGES or journal.size + len(line) > most:
        return False
    append(journal, line)
    return True


def _write(fitted: ModelState, path: Path) -> None:
    """Write a model to a folder that is locked, and remove what older or killed saves have left there."""
    tensors = tensors_of(fitted)
    layouts = {name: Layout(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    pieces = (tensors[name] for name in order_tensors(layouts))  # a large model is never copied to be written
    weights, digest, size = write_weights(path, layouts, pieces)
    _finish(fitted, path, facts_of(fitted, weights, digest).model_dump(mode="json"), size)


def _write_together(fitted: ModelState, path: Path) -> None:
    """The same of a model that several processes have a part of each; only the names of rows are gathered."""
    weights, digest, size = write_shared_weights(fitted, path)
    rows = [name for names in process_group().all_gather_texts(list(fitted.rows)) for name in names]
    if process_group().is_main:
        facts = facts_of(fitted, weights, digest).model_dump(mode="json")
        _finish(fitted, path, {**facts, "rows": rows}, size)


def _finish(fitted: ModelState, path: Path, facts: dict[str, Any], size: int) -> None:
    """Write all but the weights, which are there and have this size, and remove what is not needed."""
    base = checksum(facts)
    index = {**facts, "checksum": base}
    kept = {str(facts["weights"])}
    if CAN_LOCK and size >= _QUICK_FROM:
        kept.add(write_quick(fitted, facts, json_bytes(index), base, path).name)
    # A journal of the same model would be taken for one of its changes as soon as the index is there.
    _removed(path / journal_name(base))
    write_json(path / INDEX, index)
    ours = (each for each in path.iterdir() if _OURS.fullmatch(each.name) and each.name != INDEX)
    old = [each for each in ours if each.name not in kept]
    for each in old + (left_over(path, _OURS) if CAN_LOCK else []):
        each.unlink(missing_ok=True)


def _removed(path: Path) -> None:
    if path.exists():
        with explain_storage_error(path):
            path.unlink()
            sync_folder(path.parent)


def require_no_loss(path: Path, table: Table) -> None:
    """Refuse to replace a saved model that has been given more since its fit than ``table`` has.

    Raises
    ------
    InputError
        If features, rows or observations would be lost, or if the model there cannot be read; the message
        says which.
    """
    if not (path / INDEX).exists():
        return
    try:
        lost = list_losses(path, table)
    except ModelFileError as error:
        raise InputError(
            f"{path} holds a model that cannot be read, so it is not known what would be lost: {error}; "
            "--force replaces it"
        ) from None
    if lost:
        raise InputError(
            f"{path} holds a model that has been given since its fit what is not in this table: "
            f"{' and '.join(lost)}; name another folder, add them to the table, or let --force drop them"
        )


def list_losses(path: Path, table: Table) -> list[str]:
    """What a saved model has been given since its fit that is not in a table, in words."""
    fitted = load(path)
    known, lost = set(fitted.backbone_features), []
    features = [name for name in fitted.catalogue if name not in known and name not in table.features]
    if features:
        lost.append(f"{len(features)} features ({join_names(features, 3)})")
    added = list(fitted.rows)[len(fitted.knowledge.cells) :]
    rows = [name for name in added if name not in table.rows]
    if rows:
        lost.append(f"{len(rows)} rows ({join_names(rows, 3)})")
    fitted_on = torch.bincount(fitted.knowledge.cells.index, minlength=len(known)).tolist()
    held = table_of(fitted, metadata=False)  # what rows observed, too
    held_counts, counts = held.counts, table.counts
    observations = 0
    for name, count in zip(fitted.backbone_features, fitted_on, strict=True):
        if name in fitted.catalogue:
            has = int(held_counts[held.features.position(name)])
            there = int(counts[table.features.position(name)]) if name in table.features else 0
            observations += max(0, has - max(count, there))
    if observations:
        lost.append(f"{observations} observations")
    return lost
