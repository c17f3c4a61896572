"""What a peer is: something that learns from known features, then adapts to new ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from problem import Context, Floats, Ints, Problem


@dataclass
class Peer(ABC):
    """The fields of a peer are its settings; ``choices`` are the values tried for some of them.

    Settings are tuned one after the other in the order of ``choices``; a choice is a value or, where
    several settings hang together, a dict of them.
    """

    choices: ClassVar[dict[str, tuple[Any, ...]]] = {}
    library: ClassVar[str | None] = None  # what it imports beyond Headstart's own requirements
    shots: ClassVar[tuple[int, ...] | None] = None  # those at which it is worth its time; None: all
    tuning_shots: ClassVar[tuple[int, ...] | None] = None  # … and at which it is tuned
    tuned_as: ClassVar[str | None] = None  # the method whose tuned settings it takes

    @abstractmethod
    def fit(self, problem: Problem) -> None:
        """Learn from what is known."""

    @abstractmethod
    def adapt(self, context: Context) -> Any:
        """Adapt to all new features at once; returns what ``predict`` needs. This is what is timed."""

    @abstractmethod
    def predict(self, adapted: Any, feature: Ints, row: Ints) -> Floats:
        """The mean (rating, data units) or probability of 1 (binary) at these cells: (n,)."""

    def spread(self) -> Floats | None:
        """The standard deviations of the last prediction, from methods that say how sure they are: (n,)."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, for the record."""
        return asdict(self)
