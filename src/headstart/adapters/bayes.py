"""The closed-form head by itself: its prior mean is a regression on metadata."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from headstart.adapters.closed_form import ClosedFormAdapter
from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.knowledge import Knowledge


class BayesConfig(AdapterConfig):
    """Settings of the closed-form head; there is nothing to tune."""

    name: Literal["bayes"] = "bayes"


@register_adapter
class BayesHead(ClosedFormAdapter):
    """Bayesian regression from the prior that metadata gives."""

    config_type: ClassVar[type[AdapterConfig]] = BayesConfig
    by_sums_alone: ClassVar[bool] = True

    def __init__(self, config: BayesConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self.requires_grad_(False)  # what the known heads say is all it learns; chn-bayes learns further

    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:  # noqa: ARG002
        """What metadata predicts: (features, size)."""
        return self.prior.mean(batch)
