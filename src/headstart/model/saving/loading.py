"""Load a model from a folder: all of it, or only the parts that are used."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.adapters.base import ADAPTERS
from headstart.backbones.base import BACKBONES
from headstart.errors import HeadstartError, ModelFileError, ModelFileWarning
from headstart.files import CAN_LOCK, read_json, read_regular_file, unpack_tensors
from headstart.model.saving.assembly import assemble
from headstart.model.saving.format import FORMAT, ModelFacts, checksum
from headstart.model.saving.journal import Journal, join_observations, journal_name, read_journal, replay
from headstart.model.saving.lazy import find_checksum, open_lazily
from headstart.model.state import ModelState

INDEX = "model.json"

WEIGHTS = re.compile(r"weights-[0-9a-f]{16}\.safetensors")

_ATTEMPTS = 20  # at reading a model that other processes replace at the same time


@dataclass(frozen=True)
class OpenModel:
    """A model that was read from a folder, with its journal and the size of its weights."""

    model: ModelState
    journal: Journal
    size: int  # of the weights, in bytes
    verified: bool = True  # whether all files were read and checked for damage


def load(path: Path, *, verify: bool = True) -> ModelState:
    """Load the model in a folder; raise ModelFileError if it is missing, damaged or of a newer format."""
    return open_model(path, verify=verify).model


def open_model(path: Path, *, verify: bool = True) -> OpenModel:
    """Open the model in a folder and replay its journal.

    Without ``verify`` a large model is mapped into memory and not checked for damage.
    """
    require_model(path)
    return _replay_journal((_open_lazily(path, verify) if CAN_LOCK else None) or read_whole(path))


def check_model(path: Path) -> OpenModel:
    """Read the whole model, also in the way it is opened lazily, and refuse it if a file is damaged."""
    require_model(path)
    opened = _replay_journal(read_whole(path))
    facts, base = _read_facts(path)
    lazy_files = [*path.glob(f"lazy-{base[:16]}-*")]
    if lazy_files and open_lazily(path, base, facts) is None:
        raise ModelFileError(
            f"{lazy_files[0]} is damaged; remove it: the model is whole without it and only opens slower"
        )
    return opened


def describe_files(path: Path, opened: OpenModel) -> dict[str, str]:
    """Return facts about the folder of a model: its checksums, changes, size and format."""
    facts, base = _read_facts(path)
    return {
        "checksum of the saved model": base,
        "changes in the journal": str(len(opened.journal.changes)),
        "checksum with these changes": opened.journal.digest,
        "weights": f"{opened.size / 1e6:.1f} MB",
        "format": str(facts["format"]),
    }


def read_whole(path: Path) -> OpenModel:
    """Read all of a model from ``model.json``, without replaying its journal."""
    with _damage_errors(path / INDEX):
        facts, content, journal = _read_files(path)
        return OpenModel(_assemble(path, facts, content), journal, len(content))


def require_model(path: Path) -> None:
    """Refuse a path without a model."""
    try:
        exists = path.is_dir()
    except (OSError, ValueError) as error:  # such as a name that is too long
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelFileError(f"{path} is not a saved model: {reason}") from None
    if not exists:
        raise ModelFileError(f"{path} is not a saved model: there is no such folder")
    if not (path / INDEX).exists():
        raise ModelFileError(f"{path} is not a saved model: it has no {INDEX}")


def changing_files(path: Path) -> list[Path]:
    """Return the files of a saved model that are compared to detect changes: each change alters one."""
    index = path / INDEX
    try:
        base = find_checksum(index)
    except (FileNotFoundError, ModelFileError):
        return [index]
    journal = None if base is None else path / journal_name(base)
    return [index] if journal is None or not journal.exists() else [index, journal]


def _replay_journal(opened: OpenModel) -> OpenModel:
    if opened.journal.warning is not None:
        warnings.warn(opened.journal.warning, ModelFileWarning, stacklevel=5)
    if not opened.journal.changes:
        return opened
    with _damage_errors(opened.journal.path):
        calls = join_observations(itertools.chain.from_iterable(opened.journal.changes))
        return replace(opened, model=functools.reduce(replay, calls, opened.model))


def _open_lazily(path: Path, verify: bool) -> OpenModel | None:
    """Map a large model into memory; return None if it must be read as a whole."""
    for _ in range(_ATTEMPTS):
        try:
            facts, base = _read_facts(path) if verify else (None, find_checksum(path / INDEX))
            opened = None if base is None else open_lazily(path, base, facts)
            if base is None or opened is None:
                return None
            journal = read_journal(path / journal_name(base), base)
            if find_checksum(path / INDEX) == base:  # no other process has replaced it meanwhile
                return OpenModel(opened[0], journal, opened[1], verify)
        except (ModelFileError, FileNotFoundError):
            return None  # reading the whole model then raises an error that explains
    return None


@contextmanager
def _damage_errors(file: Path) -> Iterator[None]:
    """Turn an error in the block into a ModelFileError that names the damaged file."""
    try:
        yield
    except ModelFileError:
        raise
    except HeadstartError as error:
        raise ModelFileError(f"{file} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError, MemoryError) as error:
        raise ModelFileError(f"{file} is damaged: {type(error).__name__}: {error}") from None


def _read_files(path: Path) -> tuple[dict[str, Any], bytes, Journal]:
    """Read ``model.json``, the weights that it names, and its journal.

    Other processes may replace the model at the same time, so reading is repeated until all three files
    belong to the same ``model.json``.
    """
    last_failure: str | None = None
    for _ in range(_ATTEMPTS):
        facts, base = _read_facts(path)
        try:
            content = read_regular_file(path / facts["weights"])
            journal = read_journal(path / journal_name(base), base)
        except FileNotFoundError:  # perhaps the model was just replaced, and the index names another file
            failure = f"{path} is incomplete: {facts['weights']} is missing"
        except ModelFileError as error:  # perhaps the journal was just written to
            failure = str(error)
        else:
            if _read_facts(path)[1] == base:
                return facts, content, journal
            continue
        if failure == last_failure:
            raise ModelFileError(failure)
        last_failure = failure
    raise ModelFileError(f"{path} is replaced by others all the time; try again")


def _read_facts(path: Path) -> tuple[dict[str, Any], str]:
    """Read ``model.json``; return its content and its checksum after checking them."""
    facts = read_json(path / INDEX)
    version = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise ModelFileError(f"{path / INDEX} is damaged: it does not say which format it has")
    if version > FORMAT:
        raise ModelFileError(
            f"{path} was saved by a newer version (format {version}; this one reads up to {FORMAT}); "
            "upgrade headstart to load it"
        )
    base = facts.pop("checksum", None)
    if base != checksum(facts):
        raise ModelFileError(f"{path / INDEX} is damaged: its content does not match its checksum")
    if not WEIGHTS.fullmatch(str(facts.get("weights"))):
        raise ModelFileError(f"{path / INDEX} is damaged: {facts.get('weights')!r} is not a file of weights")
    return facts, base


def _assemble(path: Path, facts: dict[str, Any], content: bytes) -> ModelState:
    """Assemble a model from its facts and the content of its file of weights, after checking both."""
    if hashlib.sha256(content).hexdigest() != facts["weights_sha256"]:
        raise ModelFileError(
            f"{path / facts['weights']} is damaged or cut short: its content does not match {INDEX}"
        )
    _require_packages(path, facts)
    return assemble(ModelFacts(**facts), unpack_tensors(content))


def _require_packages(path: Path, facts: dict[str, Any]) -> None:
    """Refuse a model whose backbone or adapter is not installed; the error names the missing package."""
    settings = facts["settings"]
    base = settings["adapter"].get("base")  # the adapter whose heads a fine-tuning adapter starts from
    configs = {"backbone": settings["backbone"], "adapter": settings["adapter"]}
    configs |= {"base": base} if isinstance(base, dict) else {}
    for part, config in configs.items():
        name, package = config["name"], facts["packages"].get(part, "headstart")
        family = "backbone" if part == "backbone" else "adapter"
        if not (name in BACKBONES if part == "backbone" else name in ADAPTERS):
            raise ModelFileError(
                f"{path} needs the {family} {name!r} of the package {package!r}, which is not installed here;"
                f" install {package} to load this model"
            )
