"""What several processes can train together."""

from __future__ import annotations

from headstart.adapters.closed_form import ClosedFormAdapter
from headstart.adapters.registry import ADAPTERS
from headstart.backbones.factorisation import FactorisationConfig
from headstart.errors import InputError, argument
from headstart.model.parts.settings import Settings


def require_shareable(settings: Settings) -> None:
    """Refuse settings of parts that need all rows in one process.

    Raises
    ------
    InputError
        If the backbone is not the factorisation, the adapter not bayes, chn-bayes or auto, or if there is a
        share of features for meta-training or a half-life.
    """
    if not isinstance(settings.backbone, FactorisationConfig):
        raise InputError(
            f"the backbone {settings.backbone.name!r} is trained by one process; under torchrun take "
            f"{argument('backbone', 'factorisation')}"
        )
    adapter = settings.adapter
    if not isinstance(adapter, str) and not issubclass(ADAPTERS.part_of(adapter), ClosedFormAdapter):
        raise InputError(
            f"the adapter {adapter.name!r} is trained by one process; under torchrun take "
            f"{argument('adapter', 'bayes')}, chn-bayes or auto"
        )
    for name in ("meta_share", "half_life"):
        if getattr(settings, name) is not None:
            raise InputError(f"{argument(name)} is not supported under torchrun; leave it out")
