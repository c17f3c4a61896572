"""Save a model to a folder.

``model.json`` contains a checksum of itself and the name of the file of weights, which includes the hash of
its content. Saving writes the new weights beside the old ones, then replaces ``model.json`` atomically, then
removes the old weights, so that the folder contains a complete model at any time.

A large model has one more file, with which it is opened lazily (``lazy.py``).
A change of a saved model is a line in its journal, whose name contains the checksum of ``model.json``; so
does the name of the file with the number of acknowledged changes.
When the journal has become long, the whole model is saved again and the journal removed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.display import count
from headstart.distributed import (
    consume_in_main_process,
    only_in_main_process,
    process_group,
    run_in_main_process,
)
from headstart.errors import InputError, ModelFileError, join_names
from headstart.files import (
    CAN_LOCK,
    FolderLock,
    TensorLayout,
    explain_storage_error,
    is_partial,
    left_over,
    lock_folder,
    order_tensors,
    sync_folder,
    write_json,
    write_tensors,
)
from headstart.linalg.row_sharded import (
    gather_line_blocks,
    gather_row_blocks,
    global_count,
    global_start,
    global_sum,
)
from headstart.model.fitting import with_global_shots
from headstart.model.saving.export import export_table
from headstart.model.saving.format import checksum, find_copies, model_facts, model_tensors, narrow_tensors
from headstart.model.saving.journal import (
    Call,
    acknowledged_path,
    append_line,
    encode_line,
    journal_name,
    keep_rest,
)
from headstart.model.saving.lazy import LAZY_FILE, write_lazy_file
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

_JOURNAL = re.compile(r"journal-[0-9a-f]{16}\.jsonl")

_ACKNOWLEDGED = re.compile(r"acknowledged-[0-9a-f]{16}\.json")

_MODEL_FILES = re.compile(
    "|".join([re.escape(INDEX), *(file.pattern for file in (WEIGHTS, _JOURNAL, _ACKNOWLEDGED, LAZY_FILE))])
)

_UNNAMED_WEIGHTS = f"weights-{'0' * 16}.safetensors"  # until the hash of the content is known

_LAZY_FROM = 2**24  # bytes of weights from which a model is opened lazily

_MAX_CHANGES, _MAX_OBSERVATIONS = 128, 2048  # in a journal: all are replayed whenever the model is loaded

_MAX_JOURNAL_BYTES, _MAX_JOURNAL_SHARE = 2**22, 4  # the larger of 4 MiB and a quarter of the weights

_SLOW_VERBS = {"remove_row", "rename_feature"}  # slow to replay on a large model, which is saved instead

_SHARDED_BY_ROW = (
    "states/", "knowledge/states/", "knowledge/indptr", "knowledge/index", "knowledge/values",
    "observation_values/", "observation_weights/table",
)  # fmt: skip

_CONTEXTS = ("contexts/rows", "contexts/values", "observation_weights/contexts")


def save(model: Callable[[], ModelState], path: Path, owner: object = None) -> None:
    """Write a model to a folder, replacing an older one.

    ``model`` is called once the folder is locked, so if two threads save, the later one writes the newer
    model. If the rows of the model are divided among processes, all of them must call this function.
    """
    run_in_main_process(lambda: check_place(path))
    with only_in_main_process(lock_folder(path, owner, create=True)):
        run_in_main_process(lambda: check_place(path))
        _write(with_global_shots(model()), path)
        process_group().barrier()


@contextmanager
def open_for_changes(path: Path) -> Iterator[tuple[OpenModel, FolderLock]]:
    """Open a model and lock its folder while the block changes it; other writers wait."""
    require_model(path)  # before it is locked
    with lock_folder(path) as lock:
        opened = open_model(path, verify=False)
        keep_rest(opened.journal)
        _remove_left_over(path)
        yield opened, lock


def append_changes(before: OpenModel, calls: list[Call]) -> bool:
    """Append the calls that changed a model to its journal; its folder must be locked.

    Return False, and write nothing, if the journal would become too long or too slow to replay. Then the
    whole model must be saved.
    """
    journal = before.journal
    if before.size >= _LAZY_FROM and any(call["verb"] in _SLOW_VERBS for call in calls):
        return False
    if not calls:
        return True
    line = encode_line(journal.digest, calls)
    limit = max(_MAX_JOURNAL_BYTES, before.size // _MAX_JOURNAL_SHARE)
    if len(journal.changes) >= _MAX_CHANGES or journal.size + len(line) > limit:
        return False
    all_calls = [call for change in journal.changes for call in change] + calls
    if sum(len(call.get("values", ())) for call in all_calls) > _MAX_OBSERVATIONS:
        return False
    append_line(journal, line)
    return True


def check_place(path: Path) -> None:
    """Refuse a path that contains anything but a model or the remains of an interrupted first save."""
    try:
        is_file = path.exists() and not path.is_dir()
    except (OSError, ValueError) as error:  # such as a name that is too long, or with a null character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{str(path)!r} cannot be the folder of a model: {reason}") from None
    if is_file:
        raise InputError(f"{path} is a file; a model is saved as a folder")
    if not path.is_dir() or (path / INDEX).exists():
        return
    # The files are listed once: another process may save a model here at the same time.
    names = sorted(file.name for file in path.iterdir())
    others = [
        name for name in names if not _MODEL_FILES.fullmatch(name) and not is_partial(name, _MODEL_FILES)
    ]
    if others:
        raise InputError(
            f"{path} holds other things ({join_names(others, 3)}) and no model; name another folder"
        )


def _write(model: ModelState, path: Path) -> None:
    """Write a model to a locked folder.

    If its rows are divided among processes, the main process writes, and the others send their rows in
    blocks: no process ever has all rows in memory.
    """
    tensors = _with_global_indices(model_tensors(model), len(model.rows))
    local_counts = tensors["contexts/counts"]
    tensors["contexts/counts"] = global_sum(local_counts)
    copies = find_copies(tensors)
    tensors = narrow_tensors({name: tensor for name, tensor in tensors.items() if name not in copies})
    layouts = {
        name: TensorLayout(tensor.dtype, _global_shape(name, tensor)) for name, tensor in tensors.items()
    }
    blocks = (
        block
        for name in order_tensors(layouts)
        for block in _gather_blocks(name, tensors[name], local_counts)
    )
    written = consume_in_main_process(blocks, lambda blocks: _write_weights(path, layouts, blocks))
    rows = [name for names in process_group().all_gather_texts(list(model.rows)) for name in names]
    if written is not None:
        weights, digest, size = written
        facts = model_facts(model, weights, digest, copies).model_dump(mode="json")
        _write_index(path, {**facts, "rows": rows}, size)


def _with_global_indices(tensors: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Return the tensors of this process with rows and observations numbered as in the whole model."""
    if process_group().is_single:
        return tensors
    indptr = tensors["knowledge/indptr"] + global_start(len(tensors["knowledge/index"]))
    return tensors | {
        "contexts/rows": tensors["contexts/rows"] + global_start(rows),
        "knowledge/indptr": indptr if process_group().is_main else indptr[1:],
    }


def _global_shape(name: str, tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor of the whole model, given its part in this process."""
    shape = tuple(tensor.shape)
    return (global_count(len(tensor)), *shape[1:]) if _is_sharded(name) else shape


def _is_sharded(name: str) -> bool:
    """Return whether the tensor of this name has an entry for each row or observation."""
    return name.startswith(_SHARDED_BY_ROW) or name in _CONTEXTS


def _gather_blocks(name: str, part: Tensor, local_counts: Tensor) -> Iterator[Tensor]:
    """Yield a tensor of the whole model in blocks, in the main process; the others send their parts.

    ``local_counts`` (features,) are the lengths of the contexts in this process.
    """
    if name in _CONTEXTS:
        yield from gather_line_blocks(part, local_counts)
    elif _is_sharded(name):
        yield from gather_row_blocks(part)
    elif process_group().is_main:
        yield part


def _write_weights(
    folder: Path, layouts: Mapping[str, TensorLayout], pieces: Iterable[Tensor]
) -> tuple[str, str, int]:
    """Write tensors of these layouts from consecutive pieces; return the file's name, digest and size."""
    digest, size = write_tensors(folder / _UNNAMED_WEIGHTS, layouts, pieces)
    name = f"weights-{digest[:16]}.safetensors"
    with explain_storage_error(folder / name):
        os.replace(folder / _UNNAMED_WEIGHTS, folder / name)
        sync_folder(folder)
    return name, digest, size


def _write_index(path: Path, facts: dict[str, Any], size: int) -> None:
    """Write all files except the weights, which exist and have ``size`` bytes; remove superseded files."""
    base = checksum(facts)
    index = {**facts, "checksum": base}
    current = {str(facts["weights"])}
    if CAN_LOCK and size >= _LAZY_FROM:
        current.add(write_lazy_file(facts, base, path).name)
    # Otherwise an older journal of the same model would be replayed as soon as the index is written.
    journal = path / journal_name(base)
    _remove(acknowledged_path(journal))  # before the journal, which without its changes would seem cut
    _remove(journal)
    write_json(path / INDEX, index)
    files = (file for file in path.iterdir() if _MODEL_FILES.fullmatch(file.name) and file.name != INDEX)
    superseded = [file for file in files if file.name not in current]
    for file in superseded:
        file.unlink(missing_ok=True)
    _remove_left_over(path)


def _remove_left_over(path: Path) -> None:
    """Remove the unfinished files of killed writers from a locked folder."""
    for file in left_over(path, _MODEL_FILES) if CAN_LOCK else []:
        file.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.exists():
        with explain_storage_error(path):
            path.unlink()
            sync_folder(path.parent)


def model_digest(path: Path) -> str:
    """Return a short digest of a saved model, which every change alters and copies share."""
    try:
        files = list(changing_files(path))
        if not all(file.is_file() for file in files):  # a pipe would wait for its other end
            raise OSError
        content = b"".join(file.read_bytes() for file in files)
    except OSError:
        raise ModelFileError(f"{path} is not a saved model: {INDEX} cannot be read") from None
    return hashlib.sha256(content).hexdigest()[:12]


def file_stamp(path: Path) -> tuple[tuple[int, int, int], ...] | None:
    """Return the time, inode and size of the files that changes of a model alter; None without a model."""
    try:
        stats = [file.stat() for file in changing_files(path)]
    except OSError:
        return None
    return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


def require_no_loss(path: Path, table: Table) -> None:
    """Refuse to replace a saved model that has received more since its fit than ``table`` contains.

    Raises
    ------
    InputError
        If features, rows or observations would be lost, or if the saved model cannot be read; the message
        names them.
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
            f"{path} holds a model that has received more since its fit than this table contains: "
            f"{' and '.join(lost)}; name another folder, add them to the table, or let --force drop them"
        )


def list_losses(path: Path, table: Table) -> list[str]:
    """List the features, rows and observations added to a saved model since its fit and not in ``table``."""
    model = load(path)
    backbone_features, losses = set(model.backbone_features), []
    features = [
        name for name in model.feature_store if name not in backbone_features and name not in table.features
    ]
    if features:
        losses.append(f"{count(len(features), 'feature')} ({join_names(features, 3)})")
    added_rows = list(model.rows)[len(model.knowledge.cells) :]
    rows = [name for name in added_rows if name not in table.rows]
    if rows:
        losses.append(f"{count(len(rows), 'row')} ({join_names(rows, 3)})")
    counts_at_fit = torch.bincount(model.knowledge.cells.index, minlength=len(backbone_features)).tolist()
    exported = export_table(model, metadata=False)  # includes the observations of rows
    exported_counts, table_counts = exported.counts, table.counts
    observations = 0
    for name, at_fit in zip(model.backbone_features, counts_at_fit, strict=True):
        if name in model.feature_store:
            now = int(exported_counts[exported.features.position(name)])
            in_table = int(table_counts[table.features.position(name)]) if name in table.features else 0
            observations += max(0, now - max(at_fit, in_table))
    if observations:
        losses.append(count(observations, "observation"))
    return losses
