"""What the checks share: the error, comparisons, and small trained worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.backbones.protocol import Backbone, BackboneConfig
from headstart.backbones.registry import backbone_config
from headstart.core.batch import FeatureBatch
from headstart.core.knowledge import Knowledge
from headstart.datasets.synthetic import synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.model.parting import part_features
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.recipe import Recipe, train
from headstart.training.stages import feature_batch

SMALL_PVAE = {
    "name": "pvae",
    "embedding": 8,
    "set_size": 8,
    "encoder_layers": [16],
    "latent": 6,
    "decoder_layers": [12],
}
TABLES = {
    "ratings": lambda: synthetic_ratings(40, 24, 0.5),
    "binary": lambda: synthetic_responses(40, 24, 0.5),
    "mixed": lambda: synthetic_mixed(40, 24, 0.5),
}


class ContractError(AssertionError):
    """A part does not keep what every part of its family promises."""


@dataclass(frozen=True)
class World:
    """A trained backbone, new features, and an adapter that was meta-trained."""

    name: str
    table: Table
    backbone: Backbone
    knowledge: Knowledge
    new: FeatureBatch
    adapter: Adapter


def worlds(
    adapter: AdapterConfig, backbones: tuple[object, ...] = (SMALL_PVAE, "factorisation")
) -> list[World]:
    """Small worlds of every kind of table, for each backbone."""
    return [
        trained_world(name, adapter, backbone_config(backbone)) for backbone in backbones for name in TABLES
    ]


def trained_world(name: str, adapter: AdapterConfig, backbone: BackboneConfig) -> World:
    """Train on most features of one of the ``TABLES``; the others are new."""
    whole = TABLES[name]()
    known, unseen = whole.with_features(whole.features[:-6]), whole.with_features(whole.features[-6:])
    recipe = Recipe(
        backbone=backbone,
        pretraining=PretrainingConfig(epochs=2),
        metatraining=MetaTrainingConfig(epochs=1),
    )
    train_features, meta_features = part_features(known, None, 0)
    title = f"{name} table, backbone {backbone.name}"
    try:
        trained = train(
            known,
            train_features,
            meta_features,
            recipe,
            {"adapter": adapter},
            reporter=Reporter(quiet=True),
            checkpoint=lambda _: None,
        )
    except (RuntimeError, TypeError, IndexError) as error:
        raise ContractError(f"it cannot be trained: {error} ({title})") from error
    batch = feature_batch(unseen)
    # Contexts of 0, 1, 2, 4 … shots, so that none, few and many are there.
    shots = torch.tensor([0, 1, 2, 4, 8, 1000])
    place = torch.arange(len(batch.cells.index)) - batch.cells.indptr[batch.cells.lines]
    new = batch.observing(batch.cells.keep(place < shots[batch.cells.lines]))
    own = trained.adapters["adapter"].adapter
    return World(title, known, trained.backbone, trained.knowledge, new, own)


def require(holds: bool, promise: str, where: str) -> None:
    """Raise unless a promise is kept."""
    if not holds:
        raise ContractError(f"{promise} ({where})")


def tensors_of(part: object) -> Mapping[str, Tensor]:
    """The tensors that an object such as heads or states is made of, by name."""
    return {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}


def same(one: object, other: object, *, exact: bool = False) -> bool:
    """Whether two objects hold the same tensors, bit for bit or up to rounding."""
    first, second = tensors_of(one), tensors_of(other)
    if first.keys() != second.keys():
        return False
    return all(
        torch.equal(first[name], second[name])
        if exact
        else first[name].shape == second[name].shape
        and torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-5)
        for name in first
    )
