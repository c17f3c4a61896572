"""The state of a fitted model: ``ModelState``, its settings and clock, and how heads are computed from it.

All operations on a model take a ``ModelState`` and return another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor

from headstart.adapters.base import Adapter, AdapterConfig, adapter_config
from headstart.backbones.base import Backbone
from headstart.core.likelihood import Likelihood
from headstart.core.neighbours import LocalPart, LocalStrengths, LocalWeights
from headstart.core.predictive import predict_cells
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.errors import InputError, NumericalError, for_user, option_name
from headstart.linalg.array_ops import A, LinAlgError, namespace
from headstart.linalg.row_sharded import global_count, global_max, global_sum
from headstart.model.context_sums import ContextMemory
from headstart.model.features import Feature, FeatureStore
from headstart.model.observations import ObservationLists
from headstart.model.persistent import Arena, copy_with
from headstart.model.rows import RowMetadata, RowStore, Version
from headstart.model.staleness import NO_ERRORS, ErrorSums
from headstart.table import Cells, Kind, MetadataSchema, Names
from headstart.table.cells import offsets
from headstart.table.kinds import KindType, owner_of_column
from headstart.table.margins import Click
from headstart.table.not_applicable import NO_CELLS, NotApplicable
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import age_weights
from headstart.table.words import Words
from headstart.training.calibration import USUAL_LEVEL, Calibration
from headstart.training.judge import Judgement
from headstart.training.recipe import AUTO, Recipe

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_MAX_BATCH_FEATURES, _MAX_BATCH_OBSERVATIONS = 1024, 2**18  # whose heads are computed together

BYTES_AT_ONCE = 2**29  # memory needed to compute the heads of one batch, approximately

_MIN_ROBUST = 4  # values from which an outlier can be recognised

_MIN_UNIT = 1e-6  # of a feature without variance, relative to the usual scale

_MIN_RELATIVE_UNIT = 1e-15  # relative to the value furthest from the center, whose square must not overflow

SURPRISING = 8.0  # standard deviations; a normal variable exceeds them with probability 1e-15

_USUAL_SHOTS = 5.0  # added to the number of observations over which surprises are averaged

_FEW_FEATURES = 64  # whose local part is not cached


def _adapter(choice: object) -> object:
    return AUTO if isinstance(choice, str) and choice == AUTO else adapter_config(choice)


class Settings(Recipe):
    """The recipe of training and the adapter. A saved model has the values that were actually used."""

    adapter: Annotated[SerializeAsAny[AdapterConfig] | Literal["auto"], BeforeValidator(_adapter)] = AUTO

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.adapter == AUTO and self.meta_share is not None:
            raise InputError(
                f"{for_user('meta_share', '--meta-share')} goes with an adapter of your choice, "
                f"as {option_name('adapter', 'chn')}; not with 'auto'"
            )

    @property
    def chosen_adapter(self) -> AdapterConfig:
        """The settings of the adapter of a fitted model, which is never "auto"."""
        if isinstance(self.adapter, str):
            raise TypeError("the adapter is not chosen yet")
        return self.adapter


@dataclass(frozen=True)
class Clock:
    """The times of a model whose observations age.

    The observations of a head or of a row's state are weighted by their age relative to the newest of them,
    or to the fit if that is later. So a head or state depends on its observations alone, and does not change
    with those of others.
    """

    half_life: float
    now: float  # the newest time of any observation; the time of observations without one
    fitted_at: float  # the newest time in the fitted table
    table: NDArray[np.float64]  # (n,): the times of the observations that the backbone was fitted to

    def advance(self, times: NDArray[np.float64] | None) -> Clock:
        """Return the clock after observations at ``times``; ``now`` never decreases."""
        if times is None or not len(times):
            return self
        return replace(self, now=max(self.now, float(times.max())))

    def weights(
        self, times: NDArray[np.float64], given: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the weights of one head's or state's observations at ``times`` (n,): (n,)."""
        newest = max(self.fitted_at, float(times.max(initial=-np.inf)))
        return age_weights(times, newest, self.half_life, given)

    def weights_by_line(
        self,
        times: NDArray[np.float64],
        lines: NDArray[np.int64],
        count: int,
        given: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the weights of the observations of ``count`` heads or states: (n,).

        ``lines`` (n,) says which head or state each observation belongs to.
        """
        newest = np.full(count, self.fitted_at)
        np.maximum.at(newest, lines, times)
        return age_weights(times - newest[lines], 0.0, self.half_life, given)

    def times_now(self, count: int) -> NDArray[np.float64]:
        """Return the times of ``count`` observations that come without times."""
        return np.full(count, self.now)


def batches(features: list[Feature]) -> Iterator[list[Feature]]:
    """Split features into batches with a bounded number of features and observations."""
    batch: list[Feature] = []
    observations = 0
    # The maximum over the processes, so that all have the same batches.
    counts = global_max(torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64))
    for feature, count in zip(features, counts.tolist(), strict=True):
        full = len(batch) == _MAX_BATCH_FEATURES or observations + count > _MAX_BATCH_OBSERVATIONS
        if batch and full:
            yield batch
            batch, observations = [], 0
        batch.append(feature)
        observations += count
    if batch:
        yield batch


def extreme_feature_error(feature: Feature) -> NumericalError:
    """Return the error for a feature whose numbers are too large to compute with."""
    return NumericalError(
        f"feature {feature.name!r}: its observations or metadata are so extreme that nothing can be computed "
        "from them; correct them or leave them out"
    )


def are_finite(items: Heads | RowStates) -> Tensor:
    """Return whether all numbers of each head or state are finite: (n,)."""
    parts = [part.view(len(items), math.prod(part.shape[1:])) for part in items.parts()]
    return torch.stack([part.isfinite().all(1) for part in parts]).all(0)


def find_units(features: Sequence[Feature], middle: Kind | None) -> list[Feature]:
    """Return the features with units that fit their observations, if their scale is to be estimated.

    The units only avoid rounding errors; the adapter estimates the scale.

    Parameters
    ----------
    features : sequence of Feature
        Any features. Features without ``finds_scale`` are returned unchanged.
    middle : Kind, optional
        The usual kind of real features.
    """
    result = list(features)
    if middle is None:
        return result
    by_count: dict[int, list[int]] = {}
    for position, feature in enumerate(features):
        if feature.finds_scale and len(feature.values):
            by_count.setdefault(len(feature.values), []).append(position)
    for positions in by_count.values():
        values = np.stack([features[position].values for position in positions])
        centers, scales = _units(values, middle.span)
        for position, center, scale in zip(positions, centers.tolist(), scales.tolist(), strict=True):
            result[position] = replace(
                features[position], kind=features[position].kind.with_units(center, scale)
            )
    return result


def _units(
    values: NDArray[np.float64], usual_scale: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the centers and scales of ``values`` (features, n): (features,) each."""
    center, scale = values.mean(1), values.std(1)
    if values.shape[1] >= _MIN_ROBUST:
        # Median and median absolute deviation: one outlier must not cost the others their digits in single
        # precision.
        median = np.median(values, axis=1)
        distance = np.abs(values - median[:, None])
        deviation = np.maximum(np.median(distance, axis=1), _MIN_RELATIVE_UNIT * distance.max(1))
        varies = scale > 0
        center, scale = np.where(varies, median, center), np.where(varies, deviation, scale)
    size = np.abs(center)
    # Equal values give no scale; in units that are far too small, its variance would overflow.
    default = np.where(size > 0, np.maximum(size, _MIN_UNIT * usual_scale), usual_scale)
    return center, np.where(scale > 1e-12 * size, scale, default)


@torch.no_grad()
def widen_surprised(
    heads: Heads, batch: FeatureBatch, states: RowStates, factors: Tensor, likelihood: Likelihood
) -> Heads:
    """Increase the variances of heads with surprising observations.

    The variances of a head are multiplied by 1 + Σ 8·log(z² / 64) / (n + 5), where n is its number of shots
    and the sum is over the observations that are z > 8 standard deviations from their predictions. Other
    heads do not change.

    Parameters
    ----------
    heads : Heads
        The heads of the features.
    batch : FeatureBatch
        The features with their contexts.
    states : RowStates
        The states of the rows of the contexts.
    factors : Tensor
        The factors of the calibration: (features,).
    likelihood : Likelihood
        The likelihood of the backbone.
    """
    if heads.noise is None or global_count(len(batch.cells.index)) == 0:
        return heads
    # The variance without covariances is smaller and cheaper: it rules out most heads.
    noise_only = replace(heads, covariance=None)
    upper_bounds = _squares(noise_only, batch, replace(states, variance=None), factors, likelihood)
    far_lines = batch.cells.lines[upper_bounds > SURPRISING**2]
    counts = global_sum(torch.bincount(far_lines, minlength=len(batch)))
    chosen = torch.nonzero(counts)[:, 0]
    if len(chosen) == 0:
        return heads
    part = batch.take(chosen)
    squares = _squares(heads.take(chosen), part, states, factors[chosen], likelihood)
    excess = SURPRISING * (squares / SURPRISING**2).clamp(min=1).log()
    total = global_sum(excess.new_zeros(len(chosen)).index_add_(0, part.cells.lines, excess))
    ratio = heads.noise.new_ones(len(heads))
    ratio[chosen] = (1 + total / (global_sum(part.shots) + _USUAL_SHOTS)).to(ratio.dtype)
    covariance = None if heads.covariance is None else heads.covariance * ratio[:, None]
    return replace(heads, covariance=covariance, noise=heads.noise * ratio)


def _squares(
    heads: Heads, batch: FeatureBatch, states: RowStates, factors: Tensor, likelihood: Likelihood
) -> Tensor:
    """Return the squared distances of observations in standard deviations: (n,); 0 with a logistic link."""
    cells, lines = batch.cells, batch.cells.lines
    predictive = predict_cells(heads, states, cells, batch.kinds, likelihood)
    variance = (predictive.variance + predictive.noise).double() * factors.double()[lines] ** 2
    squares = (cells.values.double() - predictive.logits.double()) ** 2 / variance.clamp(min=1e-30)
    without = likelihood.squashes(batch.kinds) | (batch.kinds == KindType.CLICK)
    return torch.where(without[lines], 0.0, squares)


def given_exposure(feature: Feature) -> float:
    """Return the exposure of a click feature that the user gave, otherwise NaN."""
    margin = feature.kind.margin
    return margin.exposure if isinstance(margin, Click) else math.nan


class LocalCache:
    """The weights of local parts by the slots of heads, computed when they are first needed.

    Versions of a model share a cache: a slot always has the same head, and so the same local part unless a
    row of the table was removed. A copy of a model starts with an empty one.
    """

    def __init__(self) -> None:
        self._weights: tuple[object, object, dict[int, LocalWeights]] = (None, None, {})
        # The last long sequence of features and its knowledge with its local part, to predict all features.
        self._last: tuple[Sequence[Feature | None], Knowledge, LocalPart | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def weights(self, arena: Arena[Heads], knowledge: Knowledge) -> dict[int, LocalWeights]:
        """Return the weights of features whose heads are in ``arena``, by slot, given the ``knowledge``."""
        weights = self._weights
        if weights[0] is not arena or weights[1] is not knowledge:
            self._weights = weights = (arena, knowledge, {})
        return weights[2]

    def last_part(
        self,
        features: Sequence[Feature | None],
        knowledge: Knowledge,
        compute: Callable[[], LocalPart | None],
    ) -> LocalPart | None:
        """Return the local part of ``features``, computed if it is not the last long one.

        It depends on the sequence of features, which does not change, and on the ``knowledge``.
        """
        if len(features) <= _FEW_FEATURES:
            return compute()
        last = self._last
        if last is None or last[0] is not features or last[1] is not knowledge:
            self._last = last = (features, knowledge, compute())
        return last[2]


@dataclass(frozen=True)
class ModelState:
    """All parts of a fitted model. It is immutable: a change returns another state that shares most parts.

    So one thread can read a state while another one changes the model. ``updates`` explains how rows and
    features depend on each other.
    """

    settings: Settings  # with the values that were actually used
    row_store: RowStore  # the rows, with states refined by the adapter
    schema: MetadataSchema | None
    kinds: tuple[Kind, ...]  # of the fitted table, the most frequent first
    backbone: Backbone
    knowledge: Knowledge
    adapter: Adapter
    calibration: Calibration
    feature_store: FeatureStore
    backbone_features: Names  # the features of the backbone, in its order
    judgement: Judgement | None  # the comparison by which the adapter was chosen; None if the user chose
    middle: Kind | None  # the usual kind of real features, for new ones with an unknown scale
    encoders: dict[str, EncoderLike] = field(default_factory=dict)  # of metadata columns; never saved
    row_metadata: RowMetadata | None = None
    arrived: ErrorSums = NO_ERRORS  # prediction errors of observations since fit
    clock: Clock | None = None  # None if observations do not age
    # (n,): the weights, as given, of the observations that the backbone was fitted to; None: all 1
    table_weights: NDArray[np.float64] | None = None
    # (n,): the numbers (``Margin``) of these observations as given, for features without contexts. None: no
    # outlier of the knowledge's cells was winsorised, or all features have contexts
    table_values: NDArray[np.float64] | None = None
    arrivals: int = 0  # the arrival of the next observation
    local: LocalStrengths | None = None  # of local parts; None: without them
    # (features, features): the weights of local parts of the backbone's features; None: they have none
    known_weights: csr_array | None = None
    words: Words = field(default_factory=Words)  # what rows, features and values are called
    not_applicable: NotApplicable = NO_CELLS  # cells that are not predicted
    local_cache: LocalCache = field(default_factory=LocalCache)
    context_memory: ContextMemory = field(default_factory=ContextMemory)

    @property
    def rows(self) -> Names:
        """The names of the rows."""
        return self.row_store.names

    @property
    def fitted_rows(self) -> int:
        """The number of rows of the fitted table, which come before rows that were added."""
        return len(self.knowledge.cells)

    @property
    def now(self) -> float | None:
        """The newest time of any observation; None if observations do not age."""
        return None if self.clock is None else self.clock.now

    @property
    def states(self) -> RowStates:
        """The current states of all rows, refined by the adapter."""
        return self.row_store.states

    def weigh(
        self,
        weights: NDArray[np.float64] | None,
        times: NDArray[np.float64] | None,
        lines: NDArray[np.int64] | None = None,
        count: int = 1,
    ) -> NDArray[np.float64] | None:
        """Return the weights of the observations of ``count`` heads or states: (n,); None: all 1.

        They are the given ``weights`` (n,), multiplied by weights that fall with age if observations age.
        ``lines`` (n,) says which head or state each observation belongs to, if there are several.
        """
        if self.clock is None or times is None:
            return weights
        if lines is None:
            return self.clock.weights(times, weights)
        return self.clock.weights_by_line(times, lines, count, weights)

    def observers(self, feature: Feature) -> NDArray[np.int64]:
        """Return the rows in a feature's context or with their own observation of it, in ascending order."""
        return np.union1d(
            feature.rows, self.row_store.observers(np.array([self.feature_store.number(feature.name)]))
        )

    def adapt(self, features: list[Feature]) -> ModelState:
        """Return the model with these features, whose current heads are computed."""
        return self.with_heads(features, self.heads_for(features))

    @torch.no_grad()
    def heads_for(self, features: list[Feature], version: Version = "reference") -> Heads:
        """Compute the heads of features with the adapter, from references or states of the fit of rows."""
        batch, states = self.adapter_inputs(features, version)
        try:
            heads = self.adapter.adapt(batch, states)
        except LinAlgError:
            sizes = [float(np.abs(feature.values).max(initial=0)) for feature in features]
            raise extreme_feature_error(features[int(np.argmax(sizes))]) from None
        for feature, finite in zip(features, are_finite(heads).tolist(), strict=True):
            if not finite:
                raise extreme_feature_error(feature)
        return self.widen_heads(heads, batch, states)

    def widen_heads(self, heads: Heads, batch: FeatureBatch, states: RowStates) -> Heads:
        """Return ``heads`` with larger variances where observations are surprising."""
        factors = self.calibration.factor(batch.shots, batch.kinds)[:, USUAL_LEVEL]
        return widen_surprised(heads, batch, states, factors, self.knowledge.likelihood)

    def with_heads(self, features: list[Feature], heads: Heads) -> ModelState:
        """Return the model with these features and current heads."""
        return copy_with(self, feature_store=self.feature_store.put(features, heads))

    def with_row_store(self, row_store: RowStore) -> ModelState:
        """Return the model with other rows."""
        return copy_with(self, row_store=row_store)

    def with_encoders(self, encoders: Mapping[str, EncoderLike]) -> ModelState:
        """Return the model with further encoders of metadata columns, checked."""
        if encoders and self.schema is None:
            raise InputError("the model was fitted without metadata and takes no encoders")
        if self.schema is not None:
            self.schema.check_encoders(encoders)
        return replace(self, encoders={**self.encoders, **encoders})

    def rename_feature(self, feature: Feature, name: str) -> ModelState:
        """Return the model in which a feature has the new name ``name``."""
        names = self.backbone_features
        if feature.in_backbone:
            names = Names([name if old == feature.name else old for old in names], "feature")
        feature_store = self.feature_store.rename(feature.name, name, names)
        owner, new_owner = (owner_of_column(column, feature.kind) for column in (feature.name, name))
        cells = self.not_applicable.renamed({}, {owner: new_owner})
        return copy_with(self, feature_store=feature_store, backbone_features=names, not_applicable=cells)

    def rename_row(self, position: int, name: str) -> ModelState:
        """Return the model with the new ``name`` of the row at a ``position``; no other may have it."""
        if name in self.rows and self.rows.position(name) != position:
            raise InputError(f"row {name!r} is already in the model")
        cells = self.not_applicable.renamed({self.rows[position]: name}, {})
        return copy_with(self.with_row_store(self.row_store.rename(position, name)), not_applicable=cells)

    def adapter_inputs(self, features: list[Feature], version: Version) -> tuple[FeatureBatch, RowStates]:
        """Return the features as a batch, and the states of rows that its contexts index.

        An adapter that ``reads_context_rows_only`` gets the states of these rows, unless all states are in
        order anyway, as after ``fit``. Any other adapter gets the states of all rows.
        """
        batch, all_rows = self.batch_of(features), not self.adapter.reads_context_rows_only
        if self.row_store.unchanged and (len(features) > 1 or all_rows):
            return batch, self.row_store.states
        if all_rows:
            return batch, self.row_store.take(np.arange(len(self.rows)), version)
        rows, index = np.unique(batch.cells.index.numpy(), return_inverse=True)
        cells = replace(batch.cells, index=torch.from_numpy(index), width=len(rows))
        return batch.observing(cells), self.row_store.take(rows, version)

    def kinds_of(self, features: list[Feature]) -> Tensor:
        """Return the types of features in the model, where 0 and 1 can be ratings: (features,)."""
        types = torch.tensor([feature.kind.type for feature in features], dtype=torch.int64)
        return self.modelled_types(types)

    def kind_of(self, feature: Feature) -> int:
        """Return the type of one feature in the model, as in ``kinds_of``."""
        kind = int(feature.kind.type)
        return int(KindType.RATING) if kind == KindType.BINARY and self.binary_as_numbers else kind

    def modelled_types(self, types: A) -> A:
        """Return the types in the model of features with these ``types``, of the same shape."""
        if not self.binary_as_numbers:
            return types
        return namespace(types).where(types == KindType.BINARY, int(KindType.RATING), types)  # type: ignore[no-any-return]

    @property
    def binary_as_numbers(self) -> bool:
        """Whether binary values are modelled as numbers, with an identity link."""
        return self.settings.binary_link == "identity" and KindType.BINARY not in self.knowledge.kinds

    def with_own_units(self, feature: Feature) -> Feature:
        """Return a feature with units that fit its observations, if its scale is to be estimated."""
        return find_units([feature], self.middle)[0]

    def _units_of(self, feature: Feature) -> tuple[float, float]:
        """Return the units of a feature whose scale is estimated, in usual units; zeros for others."""
        if not feature.finds_scale or self.middle is None:
            return 0.0, 0.0
        zero = (feature.kind.offset - self.middle.offset) / self.middle.span
        return zero, feature.kind.span / self.middle.span

    def batch_of(self, features: list[Feature]) -> FeatureBatch:
        """Return features and their contexts as a batch for the adapter."""
        counts = torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64)
        scales = np.array([(feature.kind.offset, feature.kind.span) for feature in features])
        offset, span = np.repeat(scales, counts.numpy(), axis=0).T
        scaled = (np.concatenate([feature.values for feature in features]) - offset) / span
        return FeatureBatch(
            Cells(
                offsets(counts),
                torch.from_numpy(np.concatenate([feature.rows for feature in features])),
                torch.from_numpy(scaled).float(),
                len(self.rows),
                self._weights(features, counts.numpy()),
            ),
            torch.from_numpy(np.stack([feature.metadata for feature in features])),
            self.kinds_of(features),
            torch.tensor([self._units_of(feature) for feature in features], dtype=torch.float64),
            known=self._known(features),
            exposure=torch.tensor([given_exposure(feature) for feature in features], dtype=torch.float64),
        )

    def _weights(self, features: list[Feature], counts: NDArray[np.int64]) -> Tensor | None:
        """Return the weight of each observation of these features: (n,); None: all 1."""
        if self.clock is None and all(feature.weights is None for feature in features):
            return None
        lists = ObservationLists.of([feature.observations for feature in features])
        lines = np.repeat(np.arange(len(features)), counts)
        weights = self.weigh(lists.weights, lists.times, lines, len(features))
        return None if weights is None else torch.from_numpy(weights).float()

    def _known(self, features: list[Feature]) -> Tensor:
        """Return the positions of features in the backbone: (features,); -1 for other features."""
        positions = torch.full((len(features),), -1)
        known = [i for i, feature in enumerate(features) if feature.in_backbone]
        if known:
            names = [features[i].name for i in known]
            positions[known] = torch.from_numpy(self.backbone_features.positions(names))
        return positions
