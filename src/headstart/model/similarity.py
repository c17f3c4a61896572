"""Find features with similar predictions: ``similar`` is the implementation of ``Headstart.similar``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.display import MAX_LINES, table_html, text_table
from headstart.model.features import Feature
from headstart.model.levels import columns_of, owner_of
from headstart.model.ranking import top_candidates
from headstart.model.state import ModelState
from headstart.model.titles import feature_titles
from headstart.table.arrow_columns import number_column, text_column
from headstart.table.names import as_name

_CONSTANT = 1e-12  # outputs with a smaller variance, on the models' scale, count as constant

_AT_ONCE = 1 << 14  # heads whose correlations are computed together


@dataclass(frozen=True, eq=False, repr=False)
class Similar:
    """Features similar to one feature, the most similar first.

    Attributes
    ----------
    feature : str
        The feature that the others are compared with.
    names : tuple of str
        The names of the others. Equally similar features are in the order of the model.
    similarity : ndarray of shape (n,)
        The correlations of their outputs with those of ``feature``, over rows.
    titles : tuple of str, optional
        The metadata ``title`` or ``name`` of each, if there is such a column.
    """

    feature: str
    names: tuple[str, ...]
    similarity: NDArray[np.float64]
    titles: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(zip(self.names, self.similarity.tolist(), strict=True))

    def to_arrow(self) -> pa.Table:
        """Return one line per feature: feature, title if there is one, similarity."""
        titles = {} if self.titles is None else {"title": text_column(self.titles)}
        similarity = number_column(self.similarity)
        return pa.table({"feature": text_column(self.names), **titles, "similarity": similarity})

    def to_pandas(self) -> Any:
        """Return ``to_arrow`` as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    @property
    def _title(self) -> str:
        return f"{len(self)} features similar to {self.feature!r}"

    def _lines(self) -> list[tuple[str, ...]]:
        titles = [()] * len(self) if self.titles is None else [(title,) for title in self.titles]
        lines = zip(self, titles, strict=True)
        return [(name, *title, f"{value:+.3f}") for (name, value), title in lines][:MAX_LINES]

    def __repr__(self) -> str:
        more = [f"  … {len(self) - MAX_LINES} more"] if len(self) > MAX_LINES else []
        return "\n".join([self._title, *([text_table(self._lines())] if len(self) else []), *more])

    def _repr_html_(self) -> str:
        titles = () if self.titles is None else ("title",)
        return table_html(("feature", *titles, "similarity"), self._lines(), self._title, total=len(self))


@torch.no_grad()
def similar(model: ModelState, name: object, n: int) -> Similar:
    """Return the ``n`` features whose outputs over all rows correlate most with those of ``name``.

    If S is the covariance of the rows' activations, the outputs of two heads w and v have the covariance
    wᵀ·S·v, so no row has to be predicted. A feature with the same output at all rows has the similarity 0.
    The similarity of categories is the largest of their levels.
    """
    columns, feature_store = model.feature_store.columns, model.feature_store
    slots = feature_store.slots(columns_of(model, [name]))
    moment = model.states.second_moment
    row_covariance = moment[:-1, :-1] - torch.outer(moment[:-1, -1], moment[-1, :-1])
    references = feature_store.heads_at(torch.tensor(slots)).weight.double()  # of all levels of a category
    projection = row_covariance @ references.T
    reference_variance = (projection.T * references).sum(1).clamp(min=0)
    excluded = torch.from_numpy(columns.positions < 0)
    excluded[slots] = True

    def correlation(slots: slice | torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        weight = feature_store.heads_at(slots).weight.to(dtype)
        variance = ((weight @ row_covariance.to(dtype)) * weight).sum(1)
        scale = torch.outer(variance.clamp(min=0), reference_variance.to(dtype)).sqrt()
        covariance = weight @ projection.to(dtype)
        return torch.where(scale > _CONSTANT, covariance / scale.clamp(min=_CONSTANT), 0.0).amax(1)

    def score(part: slice) -> torch.Tensor:
        return torch.where(excluded[part], -torch.inf, correlation(part, torch.float32))[None]

    (near,) = top_candidates(score, 1, len(excluded), n * columns.most_levels, _AT_ONCE)
    exact = correlation(near, torch.float64).clamp(-1, 1).numpy()
    order = np.lexsort((columns.positions[near.numpy()], -exact))
    owners = [owner_of(cast(Feature, columns.features[i])) for i in near.numpy()[order]]
    first = [i for i, owner in enumerate(owners) if owner not in owners[:i]][:n]
    names = tuple(owners[i] for i in first)
    titles = feature_titles(model, names)
    return Similar(as_name(name, "feature"), names, exact[order][first], titles)
