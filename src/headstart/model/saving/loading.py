"""Load a model from a folder: all of it, or only the parts that are used."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.adapters.base import ADAPTERS
from headstart.backbones.base import BACKBONES
from headstart.errors import HeadstartError, ModelFileError
from headstart.files import CAN_LOCK, read_json, read_regular_file, unpack_tensors
from headstart.model.saving.assembly import fitted_from
from headstart.model.saving.format import FORMAT, ModelFacts, checksum
from headstart.model.saving.journal import Journal, journal_name, read_journal, replay
from headstart.model.saving.lazy import checksum_in, read_quickly
from headstart.model.saving.legacy import upgraded
from headstart.model.state import ModelState

INDEX = "model.json"

WEIGHTS = re.compile(r"weights-[0-9a-f]{16}\.safetensors")

_ATTEMPTS = 20  # to read a model that others replace at the same time


@dataclass(frozen=True)
class OpenModel:
    """A model that was read from a folder, and what it was read from."""

    fitted: ModelState
    journal: Journal | None  # None of a model of an older format
    size: int  # of the weights, in bytes
    verified: bool = True  # whether all of it was read and is not damaged


def require_model(path: Path) -> None:
    """Refuse a place that holds no model."""
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a saved model: there is no such folder")
    if not (path / INDEX).exists():
        raise ModelFileError(f"{path} is not a saved model: it has no {INDEX}")


def changing_files(path: Path) -> list[Path]:
    """The files of a saved model, in any place, of which at least one is another after every change."""
    index = path / INDEX
    try:
        base = checksum_in(index)
    except (FileNotFoundError, ModelFileError):
        return [index]
    journal = None if base is None else path / journal_name(base)
    return [index] if journal is None or not journal.exists() else [index, journal]


def load(path: Path, *, verify: bool = True) -> ModelState:
    """Read a model back; anything missing, damaged or too new is a clear error."""
    return open_model(path, verify=verify).fitted


def open_model(path: Path, *, verify: bool = True) -> OpenModel:
    """Read a model back, with what it was read from.

    Without ``verify`` a large model is not looked through for damage.
    """
    require_model(path)
    return _replayed((_opened_quickly(path, verify) if CAN_LOCK else None) or read_whole(path))


def check_model(path: Path) -> OpenModel:
    """Read all of a model, in every way in which it may be opened, and refuse it if anything is wrong."""
    require_model(path)
    found = _replayed(read_whole(path))
    base = checksum_in(path / INDEX)
    made = [] if base is None else [*path.glob(f"quick-{base[:16]}-*")]
    if base is not None and made and read_quickly(path, INDEX, base, verify=True) is None:
        raise ModelFileError(
            f"{made[0]} is damaged; remove it: the model is whole without it and only opens slower"
        )
    return found


def read_whole(path: Path) -> OpenModel:
    """Read all of a model from ``model.json``, without the changes in its journal."""
    with _reading(path / INDEX):
        facts, content, journal = _read(path)
        return OpenModel(_fitted(path, facts, content), journal, len(content))


def _replayed(found: OpenModel) -> OpenModel:
    """Make the changes in the journal."""
    if found.journal is None or not found.journal.changes:
        return found
    with _reading(found.journal.path):
        calls = itertools.chain.from_iterable(found.journal.changes)
        return replace(found, fitted=functools.reduce(replay, calls, found.fitted))


def _opened_quickly(path: Path, verify: bool) -> OpenModel | None:
    """Map a large model into memory; None if it has to be read as a whole."""
    for _ in range(_ATTEMPTS):
        try:
            base = checksum_in(path / INDEX)
            read = None if base is None else read_quickly(path, INDEX, base, verify=verify)
            if base is None or read is None:
                return None
            journal = read_journal(path / journal_name(base), base)
            if checksum_in(path / INDEX) == base:  # nobody has replaced it meanwhile
                return OpenModel(read[0], journal, read[1], verify)
        except (ModelFileError, FileNotFoundError):
            return None  # reading it as a whole says what is wrong
    return None


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    """Say of any error inside the block that this file is damaged."""
    try:
        yield
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
            content = read_regular_file(path / facts["weights"])
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
    if not WEIGHTS.fullmatch(str(facts.get("weights"))):
        raise ModelFileError(f"{path / INDEX} is damaged: {facts.get('weights')!r} is not a file of weights")
    return facts, base


def _fitted(path: Path, facts: dict[str, Any], content: bytes) -> ModelState:
    old = facts["format"] < FORMAT
    if hashlib.sha256(content).hexdigest() != facts["sha256" if old else "weights_sha256"]:
        raise ModelFileError(
            f"{path / facts['weights']} is damaged or cut short: its content does not match {INDEX}"
        )
    tensors = unpack_tensors(content)
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
