"""The saved model: a folder of ``model.json``, one file of weights and perhaps a journal; no pickle.

``model.json`` names the weights file, which carries the hash of its content in its name, and holds a
checksum of itself. Saving writes the new weights beside the old, then replaces ``model.json`` in one step,
then removes the old weights: at any moment the folder holds one whole model.

Beside the weights of a large model lies a file by which it is opened quickly (``quick``).
A change of a saved model is a line in its journal, which carries the checksum of ``model.json`` in its name.
When the journal has become long, the whole model is saved, without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from headstart.crew import crew
from headstart.errors import InputError, listed
from headstart.locking import CAN_LOCK, FolderLock, locked
from headstart.model.changing.journal import Call, append, journal_name, line_of
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.shared_heads import with_whole_shots
from headstart.model.saving.format import checksum, facts_of, tensors_of
from headstart.model.saving.opening import INDEX, WEIGHTS, Opened, opened, require_model
from headstart.model.saving.quick import QUICK, write_quick
from headstart.model.saving.shared import write_shared_weights
from headstart.model.saving.weights import write_weights
from headstart.storage import is_partial, json_bytes, left_over, storing, sync_folder, write_json
from headstart.streaming import Layout, ordered

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
        raise InputError(f"{path} holds other things ({listed(others, 3)}) and no model; name another folder")


def save(fitted: Callable[[], Fitted], path: Path, owner: object = None) -> None:
    """Write a model to a folder, in the place of an older one if there is one.

    The model is asked for once the folder is locked: of two threads that save, the later has the newer one.
    Where several processes have a part of the model each, all of them call this, and the first one writes.
    """
    if crew().launched:
        crew().agreed(lambda: check_place(path) if crew().leads else None)
        with locked(path, owner, create=True) if crew().leads else nullcontext():
            _write_together(with_whole_shots(fitted()), path)
            crew().wait()
        return
    check_place(path)
    with locked(path, owner, create=True):
        check_place(path)
        _write(fitted(), path)


@contextmanager
def updating(path: Path) -> Iterator[tuple[Opened, FolderLock]]:
    """Read a model and keep the folder locked while the block changes it; other writers wait until then."""
    require_model(path)  # before it is locked
    with locked(path) as lock:
        yield opened(path, verify=False), lock


def noted(before: Opened, calls: list[Call]) -> bool:
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


def _write(fitted: Fitted, path: Path) -> None:
    """Write a model to a folder that is locked, and remove what older or killed saves have left there."""
    tensors = tensors_of(fitted)
    layouts = {name: Layout(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    pieces = (tensors[name] for name in ordered(layouts))  # a large model is never copied to be written
    weights, digest, size = write_weights(path, layouts, pieces)
    _finish(fitted, path, facts_of(fitted, weights, digest).model_dump(mode="json"), size)


def _write_together(fitted: Fitted, path: Path) -> None:
    """The same of a model that several processes have a part of each; only the names of rows are gathered."""
    weights, digest, size = write_shared_weights(fitted, path)
    rows = [name for names in crew().texts(list(fitted.rows)) for name in names]
    if crew().leads:
        facts = facts_of(fitted, weights, digest).model_dump(mode="json")
        _finish(fitted, path, {**facts, "rows": rows}, size)


def _finish(fitted: Fitted, path: Path, facts: dict[str, Any], size: int) -> None:
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
        with storing(path):
            path.unlink()
            sync_folder(path.parent)
