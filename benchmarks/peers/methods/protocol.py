"""Define the interface of peers: methods that learn from known features, then adapt to new ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from problem import Context, Floats, Ints, Problem


@dataclass
class Peer(ABC):
    """The fields of a peer are its settings; ``choices`` are the values tried for some of them.

    Settings are tuned one after the other in the order of ``choices``; a choice is a value or,
    for several settings at once, a dict of them.
    """

    choices: ClassVar[dict[str, tuple[Any, ...]]] = {}
    library: ClassVar[str | None] = None  # its import beyond the requirements of Headstart
    shots: ClassVar[tuple[int, ...] | None] = None  # the tested shots; None: all
    tuning_shots: ClassVar[tuple[int, ...] | None] = None  # the shots it is tuned at; None: all
    tuned_as: ClassVar[str | None] = None  # the method whose tuned settings it takes

    @abstractmethod
    def fit(self, problem: Problem) -> None:
        """Learn from the known features."""

    @abstractmethod
    def adapt(self, context: Context) -> Any:
        """Adapt to all new features at once; return the argument of ``predict``. This is timed."""

    @abstractmethod
    def predict(self, adapted: Any, feature: Ints, row: Ints) -> Floats:
        """Predict the mean (rating, data units) or the probability of 1 (binary) at these cells: (n,)."""

    def spread(self) -> Floats | None:
        """Return the standard deviations of the last prediction (n,), if the method has them."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the method."""
        return asdict(self)
