"""Hold the immutable parts of a fitted model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, stack

from headstart.adapters.base import Adapter, AdapterConfig, adapter_config
from headstart.backbones.base import Backbone
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import predict_cells
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.distributed import process_group
from headstart.errors import InputError, NumericalError, for_user, option_name
from headstart.linalg.array_ops import LinAlgError
from headstart.model.features import Feature, FeatureStore
from headstart.model.rows import RowMetadata, RowStore
from headstart.table import Cells, Kind, MetadataSchema, Names
from headstart.table.cells import offsets
from headstart.table.kinds import KindType
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import weights_of
from headstart.training.calibration import USUAL_LEVEL, Calibration
from headstart.training.judge import Judgement
from headstart.training.recipe import AUTO, Recipe


def _adapter(choice: object) -> object:
    return AUTO if isinstance(choice, str) and choice == AUTO else adapter_config(choice)


class Settings(Recipe):
    """The recipe of training and the adapter. In a saved model every value is the one that really ran."""

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
        """The adapter of a fitted model; only before fit it may be left to the judge."""
        if isinstance(self.adapter, str):
            raise TypeError("the adapter is not chosen yet")
        return self.adapter


@dataclass(frozen=True)
class Clock:
    """The times of a model whose observations age.

    A head or a row's state has the weights of its own newest time: that of the newest of its observations, or
    of the fit. So it depends on its observations alone, and does not change when others are observed.
    """

    half_life: float
    now: float  # the newest time of any observation; observations without a time are made now
    fitted_at: float  # the newest time in the table of the fit
    table: NDArray[np.float64]  # (n,): the times of the observations that the backbone was fitted on

    @classmethod
    def starting(cls, half_life: float, times: NDArray[np.float64], now: float) -> Clock:
        """Return the clock of a model that was just fitted."""
        return cls(half_life, now, now, times)

    def moved(self, times: NDArray[np.float64] | None) -> Clock:
        """Return a clock that knows these times, too; it never goes back."""
        if times is None or not len(times):
            return self
        return replace(self, now=max(self.now, float(times.max())))

    def weights(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights of the observations of one head or state, made at these times: (n,)."""
        return weights_of(times, max(self.fitted_at, float(times.max(initial=-np.inf))), self.half_life)

    def weights_by_line(
        self, times: NDArray[np.float64], lines: NDArray[np.int64], count: int
    ) -> NDArray[np.float64]:
        """Return the weights of observations of ``count`` heads or states, given the line of each: (n,)."""
        newest = np.full(count, self.fitted_at)
        np.maximum.at(newest, lines, times)
        return weights_of(times - newest[lines], 0.0, self.half_life)

    def times_now(self, count: int) -> NDArray[np.float64]:
        """Return the times of ``count`` observations that are given without one."""
        return np.full(count, self.now)


_SURE = 3.0  # standard errors

_MUCH = 0.05  # nats per observation

_MOST = 50.0  # nats of one observation: a single impossible value must not decide

_DOUBLED = 1.0  # observations since fit, relative to those of the fit


class Arrived(NamedTuple):
    """Sums of errors over the observations since fit, each predicted before it was taken."""

    observations: int = 0
    excess: float = 0.0  # of the negative log-likelihood over what was expected of it
    squares: float = 0.0

    def joined(self, excess: NDArray[np.float64]) -> Arrived:
        """Return the sums with the ``excess`` (n,) of more observations."""
        count, total = self.observations + len(excess), self.excess + float(excess.sum())
        return Arrived(count, total, self.squares + float((excess**2).sum()))


NOTHING = Arrived()


@dataclass(frozen=True)
class Staleness:
    """The errors of a model on observations since its fit, relative to its own expectation.

    Attributes
    ----------
    observations : int
        The number of observations since fit, each predicted by the model as it was just before.
    growth : float
        Their number relative to those of the fit.
    excess : float
        The mean negative log-likelihood of these observations less what the model itself expected, in nats;
        0 for a model whose uncertainty is right, more for one that is surprised too often.
    standard_error : float
        Of the excess.
    """

    observations: int
    growth: float
    excess: float
    standard_error: float

    @property
    def refit(self) -> bool:
        """Whether a refit is likely to pay: surely surprised too often, or as much arrived as was fitted."""
        surprised = self.excess > max(_MUCH, _SURE * self.standard_error)
        return surprised or self.growth >= _DOUBLED

    def __str__(self) -> str:
        if not self.observations:
            return "nothing was observed since fit"
        advice = "a refit is likely to pay" if self.refit else "a refit is not likely to pay yet"
        way = "worse" if self.excess > 0 else "better"
        return (
            f"{self.observations} observations since fit ({self.growth:.0%} of the fit), each "
            f"{abs(self.excess):.3f} ± {self.standard_error:.3f} nats {way} than expected; {advice}"
        )


def staleness_of(arrived: Arrived, fitted_on: int) -> Staleness:
    """Summarise the errors since a model was fitted on ``fitted_on`` observations."""
    count = max(1, arrived.observations)
    mean = arrived.excess / count
    variance = max(0.0, arrived.squares / count - mean**2)
    error = math.sqrt(variance / count) if arrived.observations > 1 else math.inf
    return Staleness(
        arrived.observations,
        arrived.observations / max(1, fitted_on),
        mean,
        error if arrived.observations else 0.0,
    )


def excess_of(
    values: NDArray[np.float64],
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    binary: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the negative log-likelihood of values less the entropy of their predictive: (n,).

    ``mean`` and ``std`` (n,) are those of the predictive, on the models' scale as the values.
    """
    gaussian = 0.5 * (((values - mean) / np.maximum(std, 1e-12)) ** 2 - 1)
    chance = np.clip(mean, 1e-4, 1 - 1e-4)
    bernoulli = (chance - values) * np.log(chance / (1 - chance))  # -log p(x) - entropy
    return np.minimum(np.where(binary, bernoulli, gaussian), _MOST)


_FEATURES_AT_ONCE, _OBSERVATIONS_AT_ONCE = 1024, 2**18  # at most

BYTES_AT_ONCE = 2**29  # that heads of a batch take in between, about


def batches(features: list[Feature]) -> Iterator[list[Feature]]:
    """Split features into batches of bounded numbers of features and observations."""
    batch: list[Feature] = []
    held = 0
    # Of several processes all have the same batches, of the observations of the one that has the most.
    counts = process_group().all_reduce_max(
        torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64)
    )
    for feature, count in zip(features, counts.tolist(), strict=True):
        full = len(batch) == _FEATURES_AT_ONCE or held + count > _OBSERVATIONS_AT_ONCE
        if batch and full:
            yield batch
            batch, held = [], 0
        batch.append(feature)
        held += count
    if batch:
        yield batch


def too_extreme(feature: Feature) -> NumericalError:
    """Return the error of a feature whose numbers are too large to compute with."""
    return NumericalError(
        f"feature {feature.name!r}: its observations or metadata are so extreme that nothing can be computed "
        "from them; correct them or leave them out"
    )


def are_finite(heads: Heads) -> list[bool]:
    """Return whether all numbers of each head are finite."""
    parts = [part.view(len(heads), -1).isfinite().all(1) for part in heads.parts()]
    return stack(parts).all(0).tolist()


_FEWEST_OUTLIERS = 4  # values from which on one can be recognised as an outlier

_SMALLEST_UNIT = 1e-6  # of a feature of one value, in usual scales

_MOST_DIGITS = 1e-15  # the least units relative to the value furthest off, whose square must be possible


def find_units(features: Sequence[Feature], middle: Kind | None) -> list[Feature]:
    """Return features that find their scale in units that fit their observations, whatever their size.

    The units only keep numbers exact: the scale itself is found by the adapter. Features of equally many
    observations are computed together, with the same result as each by itself.

    Parameters
    ----------
    features : sequence of Feature
        Any features; those that do not find their scale are returned as they are.
    middle : Kind, optional
        The usual kind of such features.
    """
    found = list(features)
    if middle is None:
        return found
    by_count: dict[int, list[int]] = {}
    for place, feature in enumerate(features):
        if feature.finds_scale and len(feature.values):
            by_count.setdefault(len(feature.values), []).append(place)
    for places in by_count.values():
        centers, scales = _units(np.stack([features[place].values for place in places]), middle.span)
        for place, center, scale in zip(places, centers.tolist(), scales.tolist(), strict=True):
            found[place] = replace(features[place], kind=Kind.real(center, scale))
    return found


def _units(values: NDArray[np.float64], usual: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the centers and scales of values (features, n): two of (features,)."""
    center, spread = values.mean(1), values.std(1)
    if values.shape[1] >= _FEWEST_OUTLIERS:
        # One value far off must not cost the others their digits in single precision.
        robust = np.median(values, axis=1)
        distance = np.abs(values - robust[:, None])
        wide = np.maximum(np.median(distance, axis=1), _MOST_DIGITS * distance.max(1))
        varied = spread > 0
        center, spread = np.where(varied, robust, center), np.where(varied, wide, spread)
    size = np.abs(center)
    # One number does not tell a scale: in units that are far too small, the doubt about it would overflow.
    unknown = np.where(size > 0, np.maximum(size, _SMALLEST_UNIT * usual), usual)
    return center, np.where(spread > 1e-12 * size, spread, unknown)


SURPRISING = 8.0  # standard deviations: of a normal distribution, one value in 10^15 lies further

_USUAL_SHOTS = 5.0  # what is surprising is averaged with so many observations that are not


@torch.no_grad()
def widen_surprised(
    heads: Heads, batch: FeatureBatch, states: RowStates, factors: Tensor, likelihood: Likelihood
) -> Heads:
    """Make heads less sure of themselves if some of their own observations lie far from what they predict.

    Their variances are multiplied by 1 + Σ 8·log(z² / 64) / (n + 5), the sum over the observations whose
    distance z is more than 8 standard deviations; so other heads do not change at all, and one wrong value
    is not believed more the further it lies. ``factors`` (features,) are those of the calibration.
    """
    if heads.noise is None or (len(batch.cells.index) == 0 and process_group().is_single):
        return heads
    # The full variance costs more and is larger, so it is needed only where this one finds anything.
    plain = replace(heads, covariance=None)
    near = _squares(plain, batch, replace(states, variance=None), factors, likelihood)
    far = near > SURPRISING**2
    surprised = torch.bincount(batch.cells.lines[far], minlength=len(batch))
    which = torch.nonzero(process_group().all_reduce_sum(surprised))[:, 0]
    if len(which) == 0:
        return heads
    part = batch.take(which)
    squares = _squares(heads.take(which), part, states, factors[which], likelihood)
    excess = SURPRISING * (squares / SURPRISING**2).clamp(min=1).log()
    total = process_group().all_reduce_sum(
        excess.new_zeros(len(which)).index_add_(0, part.cells.lines, excess)
    )
    ratio = heads.noise.new_ones(len(heads))
    ratio[which] = (1 + total / (process_group().all_reduce_sum(part.shots) + _USUAL_SHOTS)).to(ratio.dtype)
    covariance = None if heads.covariance is None else heads.covariance * ratio[:, None]
    return replace(heads, covariance=covariance, noise=heads.noise * ratio)


def _squares(
    heads: Heads, batch: FeatureBatch, states: RowStates, factors: Tensor, likelihood: Likelihood
) -> Tensor:
    """Return squared distances of observations in standard deviations; 0 behind a logistic link: (n,)."""
    cells, lines = batch.cells, batch.cells.lines
    predictive = predict_cells(heads, states, cells, batch.kinds, likelihood)
    variance = (predictive.variance + predictive.noise).double() * factors.double()[lines] ** 2
    squares = (cells.values.double() - predictive.logits.double()) ** 2 / variance.clamp(min=1e-30)
    return torch.where(likelihood.squashes(batch.kinds)[lines], 0.0, squares)


Reads = Literal["references", "fitted"]  # which states of rows, or heads of features, a computation reads


@dataclass(frozen=True)
class ModelState:
    """All parts of a fitted model. It never changes: a change gives another one that shares the rest.

    So it can be read while another thread changes the model. ``updates`` says how rows and features depend on
    each other.
    """

    settings: Settings  # those that really ran
    roster: RowStore  # the rows, with their states as the adapter's heads read them
    schema: MetadataSchema | None
    kinds: tuple[Kind, ...]  # of the table it was fitted on, the most usual first
    backbone: Backbone
    knowledge: Knowledge
    adapter: Adapter
    calibration: Calibration
    catalogue: FeatureStore
    backbone_features: Names  # the features that the backbone reads, in its order
    judgement: Judgement | None  # how it was chosen, where the judge chose
    middle: Kind | None  # the kind of new reals whose own center and scale are found from their observations
    encoders: dict[str, EncoderLike] = field(default_factory=dict)  # of metadata columns; never saved
    row_metadata: RowMetadata | None = None  # and the prior of rows that it implies
    arrived: Arrived = NOTHING  # how well observations since fit were foreseen
    clock: Clock | None = None  # of observations that age; None if they do not
    arrivals: int = 0  # the arrival of the next observation

    @property
    def rows(self) -> Names:
        """The names of the rows."""
        return self.roster.names

    @property
    def fitted_rows(self) -> int:
        """The number of rows of the table of the fit, which come first; later ones were added."""
        return len(self.knowledge.cells)

    @property
    def now(self) -> float | None:
        """The newest time that the model knows, if observations age."""
        return None if self.clock is None else self.clock.now

    @property
    def states(self) -> RowStates:
        """The current states of all rows, as the adapter's heads read them."""
        return self.roster.states

    def observers(self, feature: Feature) -> NDArray[np.int64]:
        """Return the rows that observed a feature, by its context or by their own observations, in order."""
        return np.union1d(
            feature.rows, self.roster.observers(np.array([self.catalogue.number(feature.name)]))
        )

    def adapted(self, features: list[Feature]) -> ModelState:
        """Return the model with current heads for these features."""
        return self.holding(features, self.heads_for(features))

    @torch.no_grad()
    def heads_for(self, features: list[Feature], which: Reads = "references") -> Heads:
        """Return the heads that the adapter gives features, from references or fitted states of rows."""
        batch, states = self._adapter_inputs(features, which)
        try:
            heads = self.adapter.adapt(batch, states)
        except LinAlgError:
            sizes = [float(np.abs(feature.values).max(initial=0)) for feature in features]
            raise too_extreme(features[int(np.argmax(sizes))]) from None
        for feature, finite in zip(features, are_finite(heads), strict=True):
            if not finite:
                raise too_extreme(feature)
        return self.honest(heads, batch, states)

    def honest(self, heads: Heads, batch: FeatureBatch, states: RowStates) -> Heads:
        """Return heads that are less sure of themselves where their observations surprise."""
        factors = self.calibration.factor(batch.shots, batch.kinds)[:, USUAL_LEVEL]
        return widen_surprised(heads, batch, states, factors, self.knowledge.likelihood)

    def holding(self, features: list[Feature], heads: Heads) -> ModelState:
        """Return the model with these features and current heads."""
        return replace(self, catalogue=self.catalogue.put(features, heads))

    def with_roster(self, roster: RowStore) -> ModelState:
        """Return the model with these rows instead."""
        return replace(self, roster=roster)

    def renamed(self, feature: Feature, name: str) -> ModelState:
        """Return the model in which a feature has another name."""
        own = self.backbone_features
        if feature.in_backbone:
            own = Names([name if each == feature.name else each for each in own], "feature")
        return replace(self, catalogue=self.catalogue.rename(feature.name, name, own), backbone_features=own)

    def _adapter_inputs(self, features: list[Feature], which: Reads) -> tuple[FeatureBatch, RowStates]:
        """Return features as adapters read them, and the states to which their contexts point.

        An adapter that makes heads from sums needs only the states of those rows; they are gathered, unless
        all lie in order anyway, as after ``fit``. Any other adapter gets the states of all rows.
        """
        batch = self.batch_of(features)
        if self.roster.unchanged and (len(features) > 1 or not self.adapter.streaming):
            return batch, self.roster.states
        take = self.roster.take_fitted if which == "fitted" else self.roster.take_references
        if not self.adapter.streaming:
            return batch, take(np.arange(len(self.rows)))
        rows, index = np.unique(batch.cells.index.numpy(), return_inverse=True)
        cells = replace(batch.cells, index=torch.from_numpy(index), width=len(rows))
        return batch.observing(cells), take(rows)

    def kinds_of(self, features: list[Feature]) -> Tensor:
        """Return the kinds of features as the model takes them: (features,)."""
        return self.modelled(torch.tensor([feature.kind.type for feature in features], dtype=torch.int64))

    def kind_of(self, feature: Feature) -> int:
        """Return the kind that one feature is modelled as."""
        kind = int(feature.kind.type)
        return int(KindType.RATING) if kind == KindType.BINARY and self.binary_as_numbers else kind

    def modelled(self, types: Tensor) -> Tensor:
        """Return types of kinds as the model takes them: like ``types``."""
        if not self.binary_as_numbers:
            return types
        return torch.where(types == KindType.BINARY, int(KindType.RATING), types)

    @property
    def binary_as_numbers(self) -> bool:
        """Whether 0 and 1 are modelled as numbers: with an identity link, if all features are binary."""
        return self.settings.binary_link == "identity" and KindType.BINARY not in self.knowledge.kinds

    def with_own_units(self, feature: Feature) -> Feature:
        """Return a feature that finds its scale in units that fit its observations."""
        return find_units([feature], self.middle)[0]

    def _units_of(self, feature: Feature) -> tuple[float, float]:
        if not feature.finds_scale or self.middle is None:
            return 0.0, 0.0
        zero = (feature.kind.offset - self.middle.offset) / self.middle.span
        return zero, feature.kind.span / self.middle.span

    def batch_of(self, features: list[Feature]) -> FeatureBatch:
        """Return features and their contexts as adapters read them."""
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
        )

    def _weights(self, features: list[Feature], counts: NDArray[np.int64]) -> Tensor | None:
        """Return the weight of each observation of these features, if observations age: (n,)."""
        times = [feature.times for feature in features if feature.times is not None]
        if self.clock is None or len(times) < len(features):
            return None
        lines = np.repeat(np.arange(len(features)), counts)
        return torch.from_numpy(
            self.clock.weights_by_line(np.concatenate(times), lines, len(features))
        ).float()

    def _known(self, features: list[Feature]) -> Tensor:
        """Return the positions of features among the backbone's own; −1 for others: (features,)."""
        positions = torch.full((len(features),), -1)
        known = [i for i, feature in enumerate(features) if feature.in_backbone]
        if known:
            names = [features[i].name for i in known]
            positions[known] = torch.from_numpy(self.backbone_features.positions(names))
        return positions
