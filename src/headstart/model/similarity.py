"""Which features are alike, as their predictions go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.types import second_moment
from headstart.model.ranking import top_candidates
from headstart.model.state import ModelState


@dataclass(frozen=True, eq=False)
class Similar:
    """Features alike to one, the most alike first.

    Attributes
    ----------
    feature : str
        The feature that others were compared with.
    names : tuple of str
        The names of the others; equals are in the order of the model.
    similarity : ndarray of shape (n,)
        From 1 (all rows are predicted in the same order) through 0 to −1 (in the opposite order).
    """

    feature: str
    names: tuple[str, ...]
    similarity: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(zip(self.names, self.similarity.tolist(), strict=True))

    def to_arrow(self) -> pa.Table:
        """One line per feature: feature, similarity."""
        return pa.table({"feature": pa.array(self.names, pa.string()), "similarity": self.similarity})

    def to_pandas(self) -> Any:
        """The same as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        width = max((len(name) for name in self.names), default=0)
        lines = [f"  {name:<{width}}  {value:+.3f}" for name, value in self]
        return "\n".join([f"{len(self)} features alike to {self.feature!r}", *lines])


@torch.no_grad()
def similar(fitted: ModelState, name: object, n: int) -> Similar:
    """Rank features by the correlation of their outputs with one feature's, over the rows of the model.

    With S the covariance of rows' activations, the outputs of two heads have the covariance wᵀ·S·w', so that
    no row has to be predicted. A feature whose predictions do not differ between rows is alike to none.
    """
    listing, catalogue = fitted.catalogue.listing, fitted.catalogue
    own = catalogue[name]
    (slot,) = catalogue.slots([name])
    moment = second_moment(fitted.states)
    spread = moment[:-1, :-1] - torch.outer(moment[:-1, -1], moment[-1, :-1])
    side = spread @ catalogue.stored(torch.tensor([slot])).weight[0].double()
    length = float(side @ catalogue.stored(torch.tensor([slot])).weight[0].double())
    absent = torch.from_numpy(listing.places < 0)
    absent[slot] = True

    def correlation(where: slice | torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        weight = catalogue.stored(where).weight.to(dtype)
        own_variance = ((weight @ spread.to(dtype)) * weight).sum(1)
        scale = (own_variance.clamp(min=0) * max(length, 0)).sqrt()
        return torch.where(scale > _NO_SPREAD, weight @ side.to(dtype) / scale.clamp(min=_NO_SPREAD), 0.0)

    def score(part: slice) -> torch.Tensor:
        return torch.where(absent[part], -torch.inf, correlation(part, torch.float32))[None]

    (near,) = top_candidates(score, 1, len(absent), n, _AT_ONCE)
    exact = correlation(near, torch.float64).clamp(-1, 1).numpy()
    order = np.lexsort((listing.places[near.numpy()], -exact))[:n]
    names = [listing.features[i].name for i in near.numpy()[order]]
    return Similar(own.name, tuple(names), exact[order])


_NO_SPREAD = 1e-12  # of outputs on the models' scale: below it all rows are predicted the same

_AT_ONCE = 1 << 14
