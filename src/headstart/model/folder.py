"""The saved model: a folder of ``model.json``, one file of weights and perhaps a journal; no pickle.

``model.json`` names the weights file, which carries the hash of its content in its name, and holds a
checksum of itself. Saving writes the new weights beside the old, then replaces ``model.json`` in one step,
then removes the old weights: at any moment the folder holds one whole model.

A change of a saved model is a line in its journal, which carries the checksum of ``model.json`` in its name.
When the journal has become long, the whole model is saved, without one.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.adapters.registry import ADAPTERS
from headstart.backbones.registry import BACKBONES
from headstart.errors import HeadstartError, InputError, ModelFileError, listed
from headstart.locking import CAN_LOCK, FolderLock, locked
from headstart.model.calls import replayed
from headstart.model.fitted import Fitted
from headstart.model.format import FORMAT, ModelFacts, checksum, facts_of, fitted_from, tensors_of
from headstart.model.journal import Call, Journal, append, journal_name, line_of, read_journal
from headstart.model.legacy import upgraded
from headstart.storage import (
    left_over,
    pack,
    read_json,
    read_own,
    storing,
    sync_folder,
    unpack,
    write_bytes,
    write_json,
)

INDEX = "model.json"
_WEIGHTS = re.compile(r"weights-[0-9a-f]{16}\.safetensors")
_JOURNAL = re.compile(r"journal-[0-9a-f]{16}\.jsonl")
_OURS = re.compile(rf"{re.escape(INDEX)}|{_WEIGHTS.pattern}|{_JOURNAL.pattern}")
_ATTEMPTS = 20  # to read a model that others replace at the same time
_MOST_CHANGES = 256  # in a journal: each is made again whenever the model is loaded
_MOST_BYTES, _MOST_SHARE = 2**20, 4  # a journal may have so many, or that share of the weights


@dataclass(frozen=True)
class Opened:
    """A model that was read from a folder, and what it was read from."""

    fitted: Fitted
    journal: Journal | None  # None of a model of an older format
    size: int  # of the weights, in bytes


def check_place(path: Path) -> None:
    """Refuse a place that holds anything but a model, or what is left of one whose first save was killed."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a model is saved as a folder")
    if not path.is_dir() or (path / INDEX).exists():
        return
    left = {*left_over(path, _OURS)} | {each for each in path.iterdir() if _WEIGHTS.fullmatch(each.name)}
    others = sorted(each.name for each in path.iterdir() if each not in left)
    if others:
        raise InputError(f"{path} holds other things ({listed(others, 3)}) and no model; name another folder")


def save(fitted: Callable[[], Fitted], path: Path, owner: object = None) -> None:
    """Write a model to a folder, in the place of an older one if there is one.

    The model is asked for once the folder is locked: of two threads that save, the later has the newer one.
    """
    check_place(path)
    with locked(path, owner, create=True):
        check_place(path)
        _write(fitted(), path)


@contextmanager
def updating(path: Path) -> Iterator[tuple[Opened, FolderLock]]:
    """Read a model and keep the folder locked while the block changes it; other writers wait until then."""
    _require_model(path)  # before it is locked
    with locked(path) as lock:
        yield opened(path), lock


def noted(before: Opened, calls: list[Call]) -> bool:
    """Write to the journal which calls have changed a model whose folder is locked.

    False if nothing was written, because all of the model is to be saved: its journal would be too long.
    """
    journal = before.journal
    if journal is None:
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
    content = pack(tensors_of(fitted))
    digest = hashlib.sha256(content).hexdigest()
    weights = f"weights-{digest[:16]}.safetensors"
    facts = facts_of(fitted, weights, digest).model_dump(mode="json")
    base = checksum(facts)
    write_bytes(path / weights, content)
    # A journal of the same model would be taken for one of its changes as soon as the index is there.
    _removed(path / journal_name(base))
    write_json(path / INDEX, {**facts, "checksum": base})
    old = [each for each in path.iterdir() if _WEIGHTS.fullmatch(each.name) and each.name != weights]
    old += [each for each in path.iterdir() if _JOURNAL.fullmatch(each.name)]
    for each in old + (left_over(path, _OURS) if CAN_LOCK else []):
        each.unlink(missing_ok=True)


def _removed(path: Path) -> None:
    if path.exists():
        with storing(path):
            path.unlink()
            sync_folder(path.parent)


def load(path: Path) -> Fitted:
    """Read a model back; anything missing, damaged or too new is a clear error."""
    return opened(path).fitted


def opened(path: Path) -> Opened:
    """Read a model back, with what it was read from."""
    _require_model(path)
    place = path / INDEX
    try:
        facts, content, journal = _read(path)
        fitted = _fitted(path, facts, content)
        if journal is not None and journal.changes:
            place = journal.path
            for call in itertools.chain.from_iterable(journal.changes):
                fitted = replayed(fitted, call)
        return Opened(fitted, journal, len(content))
    except ModelFileError:
        raise
    except HeadstartError as error:
        raise ModelFileError(f"{place} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError, MemoryError) as error:
        raise ModelFileError(f"{place} is damaged: {type(error).__name__}: {error}") from None


def _read(path: Path) -> tuple[dict[str, Any], bytes, Journal | None]:
    """Read what ``model.json`` says, the weights that it names, and its journal.

    Others may replace the model at the same time: what is read must all belong to one index.
    """
    failed: str | None = None
    for _ in range(_ATTEMPTS):
        facts, base = _read_facts(path)
        journal: Journal | None = None
        try:
            content = read_own(path / facts["weights"])
            if base is not None:
                journal = read_journal(path / journal_name(base), base)
        except FileNotFoundError:  # perhaps it was just replaced: the index then names another
            failure = f"{path} is incomplete: {facts['weights']} is missing"
        except ModelFileError as error:  # perhaps it was just written to
            failure = str(error)
        else:
            if journal is None or _read_facts(path)[1] == base:
                return facts, content, journal
            continue
        if failure == failed:
            raise ModelFileError(failure)
        failed = failure
    raise ModelFileError(f"{path} is replaced by others all the time; try again")


def _require_model(path: Path) -> None:
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a saved model: there is no such folder")
    if not (path / INDEX).exists():
        raise ModelFileError(f"{path} is not a saved model: it has no {INDEX}")


def _read_facts(path: Path) -> tuple[dict[str, Any], str | None]:
    """Read ``model.json``, and the checksum by which journals name it.

    One of format 3 must agree with its own checksum; older ones have none.
    """
    facts = read_json(path / INDEX)
    form = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(form, int) or isinstance(form, bool):
        raise ModelFileError(f"{path / INDEX} is damaged: it does not say which format it has")
    if form > FORMAT:
        raise ModelFileError(
            f"{path} was saved by a newer version (format {form}; this one reads up to {FORMAT}); "
            "upgrade headstart to load it"
        )
    base = facts.pop("checksum", None) if form >= 3 else None
    if form >= 3 and base != checksum(facts):
        raise ModelFileError(f"{path / INDEX} is damaged: its content does not match its checksum")
    if not _WEIGHTS.fullmatch(str(facts.get("weights"))):
        raise ModelFileError(f"{path / INDEX} is damaged: {facts.get('weights')!r} is not a file of weights")
    return facts, base


def _fitted(path: Path, facts: dict[str, Any], content: bytes) -> Fitted:
    old = facts["format"] < FORMAT
    if hashlib.sha256(content).hexdigest() != facts["sha256" if old else "weights_sha256"]:
        raise ModelFileError(
            f"{path / facts['weights']} is damaged or cut short: its content does not match {INDEX}"
        )
    tensors = unpack(content)
    if old:
        facts, tensors = upgraded(facts, tensors)
    _require_parts(path, facts)
    return fitted_from(ModelFacts(**facts), tensors, prepare=old)


def _require_parts(path: Path, facts: dict[str, Any]) -> None:
    """Say which package is missing where a model's backbone or adapter is not there."""
    settings = facts["settings"]
    base = settings["adapter"].get("base")  # of an adapter that fine-tunes what another one gives
    needed = {"backbone": settings["backbone"], "adapter": settings["adapter"]}
    needed |= {"base": base} if isinstance(base, dict) else {}
    for part, own in needed.items():
        name, package = own["name"], facts["packages"].get(part, "headstart")
        family = "backbone" if part == "backbone" else "adapter"
        if not (name in BACKBONES if part == "backbone" else name in ADAPTERS):
            raise ModelFileError(
                f"{path} needs the {family} {name!r} of the package {package!r}, which is not installed here;"
                f" install {package} to load this model"
            )
