"""Settings of training on the command line: ``--set pretraining.epochs=3``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from headstart.model import Headstart

SECTIONS = ("backbone", "adapter", "pretraining", "metatraining")
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="A setting of the backbone, adapter, pretraining or metatraining, such as "
        "metatraining.epochs=20 or backbone.latent=16. Can be repeated.",
    ),
]


def read_settings(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the settings by section; a value is JSON, or else text.

    >>> read_settings(["metatraining.epochs=20", "metatraining.shots=log"])["metatraining"]
    {'epochs': 20, 'shots': 'log'}
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for text in texts or []:
        place, equals, value = text.partition("=")
        section, dot, name = place.strip().partition(".")
        if not (equals and dot and name and value.strip()):
            raise InputError(
                f"--set must be SECTION.NAME=VALUE, such as metatraining.epochs=20; got {text!r}"
            )
        if section not in found:
            hint = did_you_mean(section, SECTIONS) or f"; there are {', '.join(SECTIONS)}"
            raise InputError(f"--set: there is no section {section!r}{hint}")
        if name in found[section]:
            raise InputError(f"--set gives {section}.{name} twice; keep one")
        try:
            found[section][name] = json.loads(value)
        except json.JSONDecodeError:
            found[section][name] = value.strip()
    return found


def configured_model(
    backbone: str,
    adapter: str,
    given: list[str] | None,
    meta_share: float | None,
    seed: int,
    *,
    quiet: bool,
    half_life: str | None = None,
    device: str | None = None,
) -> Headstart:
    """Check all that is set for training and return a model that is yet to be fitted."""
    from headstart.adapters.registry import adapter_config
    from headstart.backbones.registry import backbone_config
    from headstart.core.devices import training_device
    from headstart.model import Headstart
    from headstart.model.parts.settings import Settings
    from headstart.table.times import half_life_of
    from headstart.training.choosing import AUTO
    from headstart.training.metatraining import MetaTrainingConfig
    from headstart.training.pretraining import PretrainingConfig

    own = read_settings(given)
    training_device(device)
    if adapter == AUTO and own["adapter"]:
        raise InputError(
            "--set adapter.… goes with an adapter of your choice, as --adapter chn; not with auto"
        )
    checked = Settings(
        backbone=backbone_config(backbone).revised(**own["backbone"]),
        adapter=AUTO if adapter == AUTO else adapter_config(adapter, seed).revised(**own["adapter"]),
        pretraining=PretrainingConfig.of(own["pretraining"]),
        metatraining=MetaTrainingConfig.of(own["metatraining"]),
        meta_share=meta_share,
        random_state=seed,
        half_life=half_life_of(half_life),
    )
    return Headstart(
        checked.backbone,
        checked.adapter,
        checked.pretraining,
        checked.metatraining,
        meta_share=meta_share,
        random_state=seed,
        quiet=quiet,
        half_life=checked.half_life,
        device=device,
    )
