"""What an adapter is: anything that maps (context, metadata) to a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from headstart.backbones.heads import Heads
from headstart.backbones.likelihood import Likelihood
from headstart.backbones.protocol import RowStates
from headstart.config import Config
from headstart.table.cells import Cells


@dataclass(frozen=True)
class FeatureBatch:
    """Features treated as new: what is observed of them, their metadata and kinds.

    ``cells`` has a line a feature, of any number of shots each; its ``index`` points at rows of the
    ``RowStates`` that go with the batch.
    """

    cells: Cells
    metadata: Tensor  # (features, metadata width); width 0 where there is none
    codes: Tensor  # (features,): the kind of each

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def shots(self) -> Tensor:
        """How many observations each feature has: (features,)."""
        return self.cells.counts

    def take(self, features: Tensor) -> FeatureBatch:
        """Return these features, in this order."""
        return FeatureBatch(self.cells.take(features), self.metadata[features], self.codes[features])

    def observing(self, cells: Cells) -> FeatureBatch:
        """Return the same features with other observations."""
        return FeatureBatch(cells, self.metadata, self.codes)


@dataclass(frozen=True)
class Knowledge:
    """All that an adapter may learn from before it sees a new feature: the frozen backbone's world."""

    states: RowStates  # of every row of the table
    cells: Cells  # rows × the backbone's features, on the models' scale
    heads: Heads  # of the backbone's features
    metadata: Tensor  # (features, metadata width) of the backbone's features
    codes: Tensor  # (features,): their kinds
    likelihood: Likelihood


class Adapter(nn.Module, ABC):
    """Maps the contexts of new features to their heads.

    ``Adapter(config, knowledge)`` builds one; only its parameters, if any, are meta-trained and
    saved, since a saved model carries the knowledge too.
    ``adapt`` must not depend on the order of a context, must work with no shots, and must give a
    batch the same heads as one feature at a time (``tests/adapters/test_contract.py``).
    """

    name: ClassVar[str]

    def __init__(self, config: Config, knowledge: Knowledge) -> None:
        super().__init__()
        self.config = config
        self.knowledge = knowledge

    @property
    def learns(self) -> bool:
        """Whether there is anything to meta-train."""
        return any(parameter.requires_grad for parameter in self.parameters())

    @property
    def meta_settings(self) -> dict[str, Any]:
        """Settings of meta-training that are part of the method, such as MAML's meta-batch."""
        return {}

    @property
    def meta_defaults(self) -> dict[str, Any]:
        """Settings of meta-training that suit the method, unless the user sets others."""
        return {}

    def refine(self, states: RowStates) -> RowStates:
        """The backbone's states as this adapter's heads read them; here as they are.

        ``adapt`` is given refined states, and its heads go with refined activations.
        """
        return states

    @abstractmethod
    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Give each feature of the batch its head; differentiable in the adapter's parameters."""


class StreamingAdapter(Adapter):
    """An adapter whose heads depend on a context only through sums over its observations.

    So an observation costs the same whether it is the second or the thousandth, and the order in
    which they come leaves no trace: ``settle(evidence(a) + evidence(b))`` is ``adapt(a and b)``. What
    was observed is taken back by subtracting its evidence.
    """

    @abstractmethod
    def streams(self, codes: Tensor) -> Tensor:
        """Whether there are such sums for these kinds: a mask like ``codes``."""

    @abstractmethod
    def evidence(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """The sums of each feature: (features, numbers) in double precision."""

    @abstractmethod
    def settle(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """The heads these sums imply; of the batch only metadata and kinds are read."""
