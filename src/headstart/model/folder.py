"""The saved model: a folder of ``model.json`` and one file of weights; no pickle.

``model.json`` names the weights file, which carries the hash of its content in its name, and holds a
checksum of itself. Saving writes the new weights beside the old, then replaces ``model.json`` in one step,
then removes the old weights: at any moment the folder holds one whole model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headstart.adapters.registry import ADAPTERS
from headstart.backbones.registry import BACKBONES
from headstart.errors import HeadstartError, InputError, ModelFileError
from headstart.model.fitted import Fitted
from headstart.model.format import FORMAT, ModelFacts, checksum, facts_of, fitted_from, tensors_of
from headstart.model.legacy import upgraded
from headstart.storage import locked, pack, read_json, unpack, write_bytes, write_json

INDEX = "model.json"
_WEIGHTS = re.compile(r"weights-[0-9a-f]{16}\.safetensors")


def check_place(path: Path) -> None:
    """Refuse a place that holds anything but a model."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a model is saved as a folder")
    if path.is_dir() and any(path.iterdir()) and not (path / INDEX).exists():
        raise InputError(f"{path} holds other things and no model; name another folder")


def save(fitted: Fitted, path: Path) -> None:
    """Write a model to a folder, in the place of an older one if there is one."""
    check_place(path)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        _write(fitted, path)


@contextmanager
def updating(path: Path) -> Iterator[Fitted]:
    """Read a model, let the block change it, write it back; other writers wait until then."""
    _require_model(path)  # before it is locked
    with locked(path):
        fitted = load(path)
        yield fitted
        _write(fitted, path)


def _write(fitted: Fitted, path: Path) -> None:
    content = pack(tensors_of(fitted))
    digest = hashlib.sha256(content).hexdigest()
    weights = f"weights-{digest[:16]}.safetensors"
    facts = facts_of(fitted, weights, digest).model_dump(mode="json")
    write_bytes(path / weights, content)
    write_json(path / INDEX, {**facts, "checksum": checksum(facts)})
    for old in path.glob("weights-*.safetensors"):
        if old.name != weights:
            old.unlink()


def load(path: Path) -> Fitted:
    """Read a model back; anything missing, damaged or too new is a clear error."""
    _require_model(path)
    facts = _read_facts(path)
    try:
        content = _weights(path, facts)
        if content is None:  # perhaps it was just replaced: the index then names another
            facts = _read_facts(path)
            content = _weights(path, facts)
        if content is None:
            raise ModelFileError(f"{path} is incomplete: {facts['weights']} is missing")
        return _fitted(path, facts, content)
    except HeadstartError as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path / INDEX} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ModelFileError(f"{path / INDEX} is damaged: {type(error).__name__}: {error}") from None


def _require_model(path: Path) -> None:
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a saved model: there is no such folder")
    if not (path / INDEX).exists():
        raise ModelFileError(f"{path} is not a saved model: it has no {INDEX}")


def _read_facts(path: Path) -> dict[str, Any]:
    """Read ``model.json``; one of format 3 must agree with its own checksum."""
    facts = read_json(path / INDEX)
    form = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(form, int) or isinstance(form, bool):
        raise ModelFileError(f"{path / INDEX} is damaged: it does not say which format it has")
    if form > FORMAT:
        raise ModelFileError(
            f"{path} was saved by a newer version (format {form}; this one reads up to {FORMAT}); "
            "upgrade headstart to load it"
        )
    if form >= 3 and facts.pop("checksum", None) != checksum(facts):
        raise ModelFileError(f"{path / INDEX} is damaged: its content does not match its checksum")
    if not _WEIGHTS.fullmatch(str(facts.get("weights"))):
        raise ModelFileError(f"{path / INDEX} is damaged: {facts.get('weights')!r} is not a file of weights")
    return facts  # type: ignore[no-any-return]


def _weights(path: Path, facts: dict[str, Any]) -> bytes | None:
    try:
        return (path / str(facts["weights"])).read_bytes()
    except FileNotFoundError:
        return None


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
