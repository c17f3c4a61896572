"""Saved models of formats 1 and 2, brought to format 3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headstart.core.types import add_cubic_terms
from headstart.table.kinds import KindType
from headstart.training.calibration import LEVELS

_MARKS = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # the numbers of shots that calibrations were measured at

_OF_PRIOR = ("base", "root_diagonal", "root_lower", "log_noise")  # now parts of an adapter's prior

# What settings are called now.
_RENAMED = {
    "most_gradient": "max_grad_norm",
    "fewest_steps": "min_steps",
    "most_shots": "max_shots",
    "most_targets": "max_targets",
    "most_dropped": "max_drop_rate",
    "decoupled_decay": "decoupled_weight_decay",
    "inner_rate": "inner_learning_rate",
    "outer_rate": "outer_learning_rate",
    "rate": "learning_rate",
    "validation": "validation_share",
}


def upgraded(facts: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return facts and tensors as format 3 has them.

    What format 3 holds beyond the older ones, such as resolved settings, is read off the tensors.
    """
    features = facts["features"]
    settings = {**facts["settings"]}
    for part in ("backbone", "adapter", "pretraining", "metatraining"):
        settings[part] = _renamed(settings.get(part, {}))
    _resolve(settings, tensors)
    new = {
        "format": 3,
        "weights": facts["weights"],
        "weights_sha256": facts["sha256"],
        "packages": {"backbone": "headstart", "adapter": "headstart"},
        "settings": settings,
        "kinds": facts["kinds"],
        "metadata": facts["schema"],
        "features": {
            "names": features["names"],
            "kinds": features["kinds"],
            "in_backbone": features["encoded"] if "encoded" in features else features["trained"],
            "shots": features["shots"],
            "finds_scale": [False] * len(features["shots"]),
            "observed_since": [False] * len(features["shots"]),
        },
        "backbone_features": facts["encoded"],
        "judgement": None,
        "middle": None,
        "rows": facts["rows"],
    }
    return new, _new_tensors(tensors, relative=bool(facts.get("relative", False)))


def _renamed(settings: Any) -> Any:
    """The same settings under today's names, at any depth."""
    if not isinstance(settings, dict):
        return settings
    return {_RENAMED.get(name, name): _renamed(value) for name, value in settings.items()}


def _resolve(settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Fill in sizes that were chosen by rules, from the tensors that have them."""
    backbone, adapter = settings["backbone"], settings["adapter"]
    if backbone["name"] == "factorisation":
        backbone["latent"] = tensors["backbone/weight"].shape[1]
        backbone["signature"] = tensors["backbone/signature.table"].shape[1]
        backbone["uncertain_rows"] = False
    for prefix, own in (("adapter/", adapter), ("adapter/base.", adapter.get("base"))):
        if isinstance(own, dict) and own["name"] == "chn-bayes":
            learned = tensors.get(f"{prefix}phi.2.bias")
            own["activations"] = 0 if learned is None else len(learned)


def _new_tensors(tensors: dict[str, Tensor], *, relative: bool) -> dict[str, Tensor]:
    new = {name: value for name, value in tensors.items() if name not in ("calibration", "streams")}
    deviations = tensors["calibration"]
    if not relative:  # they were standard deviations; now they are factors on those of the likelihood
        variance = tensors["backbone/likelihood.real_log_variance"].exp()
        deviations = deviations / torch.stack([torch.ones(()), torch.tensor(0.1), variance]).sqrt()[:, None]
    new["calibration/marks"] = torch.tensor(_MARKS[: deviations.shape[1]])
    new["calibration/factors"] = deviations[:, :, None].expand(-1, -1, len(LEVELS)).contiguous()
    new["calibration/slopes"] = torch.ones(deviations.shape[1])
    new["calibration/shifts"] = torch.zeros(deviations.shape[1])
    for name in ("weight", "bias"):
        new[f"knowledge/heads/{name}"] = new.pop(f"knowledge/{name}")
    rows, width = len(tensors["knowledge/indptr"]) - 1, tensors["knowledge/weight"].shape[1]
    for name in ("code", "code_std", "activation"):
        states = tensors[f"states/{name}"][:rows]
        new[f"knowledge/states/{name}"] = (states[:, :width] if name == "activation" else states).contiguous()
    new["knowledge/kinds"] = new["backbone/kinds"] = new.pop("backbone/codes")
    new["backbone_grid"] = tensors["backbone/grid"]
    new["contexts/arrivals"] = torch.zeros(0, dtype=torch.int64)
    _upgrade_factorisation(new)
    for prefix in ("adapter/", "adapter/base."):
        if f"{prefix}root_lower" in new:
            for name in _OF_PRIOR:
                new[f"{prefix}prior.{name}"] = new.pop(f"{prefix}{name}")
            size, width = len(new[f"{prefix}prior.root_lower"]), tensors["knowledge/metadata"].shape[1]
            new[f"{prefix}prior.misleading"] = torch.zeros((), dtype=torch.float64)
            new[f"{prefix}prior.bends"] = torch.ones(width, dtype=torch.bool)  # all columns were bent
            base, metadata = new[f"{prefix}prior.base"], tensors["knowledge/metadata"]
            means = _prior_means(base, metadata, new["backbone/kinds"])
            new[f"{prefix}prior.known_means"] = means[:, None].repeat(1, 2, 1)
            new[f"{prefix}mean_squares"] = torch.zeros(size - 1)  # the uncertainty of rows was in ``doubt``
    return new


def _prior_means(base: Tensor, metadata: Tensor, kinds: Tensor) -> Tensor:
    """What metadata, its bends and perhaps the kind predicted of each known feature's head."""
    parts = [add_cubic_terms(metadata, torch.ones(metadata.shape[1], dtype=torch.bool))]
    if len(base) > parts[0].shape[1] + 1:
        parts.append(torch.nn.functional.one_hot(kinds, len(KindType)).to(metadata.dtype))
    return torch.cat([*parts, metadata.new_ones(len(metadata), 1)], dim=1) @ base


def _upgrade_factorisation(tensors: dict[str, Tensor]) -> None:
    """The signature had a fixed centre and scale of the count, and was believed at any count."""
    if "backbone/signature.table" not in tensors:
        return
    table, scale = tensors["backbone/signature.table"], tensors["backbone/signature.scale"]
    tensors["backbone/signature.centre"] = torch.cat([torch.tensor([4.5]), torch.zeros(table.shape[1])])
    tensors["backbone/signature.scale"] = torch.cat([torch.tensor([1.5]), scale])
    tensors["backbone/signature.ends"] = torch.tensor([0.0, 50.0])
    tensors["backbone/signature.patience"] = torch.tensor(1e-9)
    tensors["backbone/exactness"] = torch.ones(len(table))
