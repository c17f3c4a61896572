"""The saved model: a folder of ``model.json`` and one file of weights; no pickle.

``model.json`` names the weights file, which carries the hash of its content in its name. Saving writes
the new weights beside the old, then replaces ``model.json`` in one step, then removes the old weights:
at any moment the folder holds one whole model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.protocol import Knowledge
from headstart.adapters.registry import adapter_config, build_adapter
from headstart.backbones.heads import Heads
from headstart.backbones.protocol import RowStates
from headstart.backbones.registry import backbone_config, build_backbone
from headstart.errors import HeadstartError, InputError, ModelFileError
from headstart.model.catalogue import Catalogue, Feature
from headstart.model.fitted import Fitted, Settings
from headstart.storage import locked, pack, read_json, unpack, write_bytes, write_json
from headstart.table import Cells, Kind, MetadataSchema, Names
from headstart.training.calibration import Calibration

FORMAT = 2  # 1 had no heads that know how sure they are
INDEX = "model.json"


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
    load(path)  # a place without a model is refused before it is locked
    with locked(path):
        fitted = load(path)
        yield fitted
        _write(fitted, path)


def _write(fitted: Fitted, path: Path) -> None:
    content = pack(_tensors(fitted))
    digest = hashlib.sha256(content).hexdigest()
    weights = f"weights-{digest[:16]}.safetensors"
    write_bytes(path / weights, content)
    write_json(path / INDEX, {"format": FORMAT, "weights": weights, "sha256": digest, **_facts(fitted)})
    for old in path.glob("weights-*.safetensors"):
        if old.name != weights:
            old.unlink()


def load(path: Path) -> Fitted:
    """Read a model back; anything missing, damaged or too new is a clear error."""
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a saved model: there is no such folder")
    if not (path / INDEX).exists():
        raise ModelFileError(f"{path} is not a saved model: it has no {INDEX}")
    facts = read_json(path / INDEX)
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise ModelFileError(f"{path / INDEX} is damaged: it does not say which format it has")
    if facts["format"] > FORMAT:
        raise ModelFileError(
            f"{path} was saved by a newer version (format {facts['format']}; this one reads up to {FORMAT}); "
            "upgrade headstart to load it"
        )
    try:
        content = _weights(path, facts)
        if content is None:  # perhaps it was just replaced: the index then names another
            facts = read_json(path / INDEX)
            content = _weights(path, facts)
        if content is None:
            raise ModelFileError(f"{path} is incomplete: {facts['weights']} is missing")
        if hashlib.sha256(content).hexdigest() != facts["sha256"]:
            raise ModelFileError(
                f"{path / facts['weights']} is damaged or cut short: its content does not match {INDEX}"
            )
        return _fitted(facts, unpack(content))
    except HeadstartError as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path / INDEX} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ModelFileError(f"{path / INDEX} is damaged: {type(error).__name__}: {error}") from None


def _weights(path: Path, facts: dict[str, Any]) -> bytes | None:
    try:
        return (path / str(facts["weights"])).read_bytes()
    except FileNotFoundError:
        return None


def _facts(fitted: Fitted) -> dict[str, Any]:
    features = list(fitted.catalogue.values())
    return {
        "settings": fitted.settings.model_dump(mode="json", exclude_unset=True),
        "kinds": [str(kind) for kind in fitted.kinds],
        "schema": None if fitted.schema is None else fitted.schema.model_dump(mode="json"),
        "features": {
            "names": [feature.name for feature in features],
            "kinds": [str(feature.kind) for feature in features],
            "encoded": [feature.encoded for feature in features],
            "shots": [feature.shots for feature in features],
        },
        "encoded": list(fitted.encoded),
        "relative": fitted.calibration.relative,
        "streams": list(fitted.catalogue.evidence),
        "rows": list(fitted.rows),
    }


def _tensors(fitted: Fitted) -> dict[str, Tensor]:
    features, heads = fitted.catalogue.take(list(fitted.catalogue))
    knowledge = fitted.knowledge
    tensors = {
        "features/weight": heads.weight,
        "features/bias": heads.bias,
        "features/metadata": _stacked(
            [feature.metadata for feature in features], knowledge.metadata.shape[1]
        ),
        "contexts/counts": torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64),
        "contexts/rows": _joined([feature.rows for feature in features], np.int64),
        "contexts/values": _joined([feature.values for feature in features], np.float64),
        "calibration": fitted.calibration.deviations,
        "knowledge/weight": knowledge.heads.weight,
        "knowledge/bias": knowledge.heads.bias,
        "knowledge/metadata": knowledge.metadata,
        "knowledge/indptr": knowledge.cells.indptr,
        "knowledge/index": knowledge.cells.index.int(),
        "knowledge/values": knowledge.cells.values,
    }
    tensors |= {f"states/{name}": getattr(fitted.states, name) for name in ("code", "code_std", "activation")}
    optional = {
        "states/noise": fitted.states.noise,
        "features/covariance": heads.covariance,
        "features/noise": heads.noise,
    }
    tensors |= {name: value for name, value in optional.items() if value is not None}
    if fitted.catalogue.evidence:
        tensors["streams"] = torch.cat(list(fitted.catalogue.evidence.values()))
    tensors |= {f"backbone/{name}": value for name, value in fitted.backbone.state_dict().items()}
    tensors |= {f"adapter/{name}": value for name, value in fitted.adapter.state_dict().items()}
    return {name: value.clone() for name, value in tensors.items()}  # files share no memory


def _stacked(lines: list[NDArray[np.float32]], width: int) -> Tensor:
    return torch.from_numpy(np.stack(lines) if lines else np.zeros((0, width), dtype=np.float32))


def _joined(parts: list[NDArray[Any]], kind: type) -> Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.zeros(0, dtype=kind)]))


def _fitted(facts: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    settings = Settings(**facts["settings"])
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = value
    of_backbone = parts["backbone"]
    backbone = build_backbone(backbone_config(settings.backbone), of_backbone["codes"], of_backbone["grid"])
    backbone.load_state_dict(of_backbone)
    backbone.eval().requires_grad_(False)
    known = parts["knowledge"]
    cells = Cells(known["indptr"], known["index"].long(), known["values"], backbone.features)
    states = RowStates(**parts["states"])
    own = states.take(torch.arange(len(cells)))
    knowledge = Knowledge(
        RowStates(own.code, own.code_std, own.activation[:, : backbone.activation_size].contiguous()),
        cells,
        Heads(known["weight"], known["bias"]),
        known["metadata"],
        backbone.codes,
        backbone.likelihood,
    )
    adapter = build_adapter(adapter_config(settings.adapter), knowledge)
    adapter.load_state_dict(parts.get("adapter", {}))
    schema = facts["schema"]
    return Fitted(
        settings=settings,
        rows=Names(facts["rows"], "row"),
        states=states,
        schema=None if schema is None else MetadataSchema.model_validate(schema),
        kinds=tuple(Kind.parse(kind) for kind in facts["kinds"]),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter.eval().requires_grad_(False),
        calibration=Calibration(tensors["calibration"], bool(facts.get("relative", False))),
        catalogue=_catalogue(facts, parts["features"], parts["contexts"], tensors.get("streams")),
        encoded=Names(facts["encoded"], "feature"),
    )


def _catalogue(
    index: dict[str, Any], tensors: dict[str, Tensor], contexts: dict[str, Tensor], streams: Tensor | None
) -> Catalogue:
    facts = index["features"]
    counts = contexts["counts"].tolist()
    rows = [part.numpy() for part in torch.split(contexts["rows"], counts)]
    values = [part.numpy() for part in torch.split(contexts["values"], counts)]
    kinds = [Kind.parse(kind) for kind in facts["kinds"]]
    metadata = tensors["metadata"].numpy()
    encoded = facts["encoded"] if "encoded" in facts else facts["trained"]
    every = zip(facts["names"], kinds, encoded, facts["shots"], metadata, rows, values, strict=True)
    heads = Heads(tensors["weight"], tensors["bias"], tensors.get("covariance"), tensors.get("noise"))
    catalogue = Catalogue(heads)
    catalogue.put([Feature(*each) for each in every], heads)
    if streams is not None:
        catalogue.evidence.update(zip(index["streams"], torch.split(streams, 1), strict=True))
    return catalogue
