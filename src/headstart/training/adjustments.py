"""Adjustments of a trained adapter, estimated from its outcomes on held-out features and rows.

``fit_known_head_shares`` finds how much new heads resemble known ones; ``fit_local_strengths`` and
``fit_known_strengths`` find the strengths of the local parts of new and of known features. An adjustment that
does not lower the error is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from headstart.core.neighbours import LocalStrengths
from headstart.core.types import VALIDATION_SHOTS
from headstart.training.calibration import Outcome, RowOutcomes, shrinkage
from headstart.training.comparison import CandidateOutcomes, beats, blend, smooth_shares

_KNOWN_HEADS_MARGIN = 1.0  # standard errors by which heads like known ones must lower the error

_LOCAL_HARM = 1.0  # standard errors by which features chosen by the context may raise the error

_LOCAL_MARGIN = 2.0  # standard errors by which similar features must lower it

_KNOWN_MARGIN = 2.0  # standard errors by which the local part of known features must lower their error

SIMILAR_PART, CHOSEN_PART = 0, 1  # columns of ``Outcome.local`` of new features

KNOWN_PART = 0  # column of ``Outcome.local`` of known features

_MIN_LOCAL_FEATURES = 12  # held out, to estimate the strengths of a local part

_LOCAL_GROUPS = 5  # of held-out features: strengths for one group are estimated from the others

_MOST_STRENGTH = 4.0  # of a local part


# -- heads like known ones ----------------------------------------------------------------------------


def fit_known_head_shares(
    candidate: CandidateOutcomes,
    set_shares: Callable[[Tensor | float], None],
    predict: Callable[[], CandidateOutcomes],
) -> tuple[Tensor, CandidateOutcomes] | None:
    """Fit the shares of heads that resemble known ones, and set them; return them with the outcomes.

    Parameters
    ----------
    candidate : CandidateOutcomes
        The outcomes of an adapter whose heads do not resemble known ones.
    set_shares : callable
        Sets the shares of the adapter: one number, or one for each of ``VALIDATION_SHOTS``.
    predict : callable
        Predicts the same held-out features with the adapter.

    Returns
    -------
    tuple of Tensor and CandidateOutcomes, or None
        Outcomes have the local parts of ``candidate``, and errors are compared with them. None if the shares
        with the least squared error, smoothed over shots, do not lower the error by more
        than ``_KNOWN_HEADS_MARGIN`` standard errors of the difference: then they are 0.
    """
    set_shares(1.0)
    resembling, plain = predict(), _apply_local(candidate)
    shares = _shares_at_shots(_apply_local(resembling), plain)
    blended = CandidateOutcomes(
        {k: blend(resembling.outcomes[k], candidate.outcomes[k], share) for k, share in shares.items()}
    )
    helps = beats(_apply_local(blended), plain, _KNOWN_HEADS_MARGIN)
    at_marks = torch.tensor(_at_all_shots(shares, shares) if helps else _at_all_shots({}, ()))
    set_shares(at_marks)
    return (at_marks, blended) if helps else None


def _shares_at_shots(candidate: CandidateOutcomes, other: CandidateOutcomes) -> dict[int, float]:
    """Return the shares of ``candidate`` in its blends with ``other`` that have the least error, by shots."""
    shots = list(other.outcomes)
    shares = smooth_shares([(candidate.outcomes[k], other.outcomes[k]) for k in shots])
    return dict(zip(shots, shares, strict=True))


def _apply_local(candidate: CandidateOutcomes) -> CandidateOutcomes:
    """Return the outcomes moved by their local part if this lowers their error, otherwise unchanged."""
    strengths_and_outcomes = fit_local_strengths(candidate)
    return candidate if strengths_and_outcomes is None else strengths_and_outcomes[1]


# -- local parts --------------------------------------------------------------------------------------


def fit_local_strengths(candidate: CandidateOutcomes) -> tuple[LocalStrengths, CandidateOutcomes] | None:
    """Estimate the strengths of the local part from a candidate's outcomes on held-out features.

    Return them with the outcomes of the candidate with its local part; None if all strengths are 0.

    Features chosen by the context have the strength 1: their prior comes from other tables, and improved most
    of them. They are left out if this raises the error by more than ``_LOCAL_HARM`` standard errors of the
    difference, and at numbers of shots at which it does not lower it. Then similar features have the
    strengths with the least error. They are left out unless they lower the error of features that did not
    contribute to the estimates by more than ``_LOCAL_MARGIN`` standard errors, and at numbers of shots at
    which they do not lower it.
    """
    if any(outcome.local is None for outcome in candidate.outcomes.values()):
        return None
    moved = _shift_by(candidate, CHOSEN_PART, dict.fromkeys(candidate.outcomes, 1.0))
    chosen = _where_lower(moved, candidate)
    if beats(candidate, moved, _LOCAL_HARM):
        chosen = dict.fromkeys(chosen, 0.0)
    moved, similar = _shift_by(candidate, CHOSEN_PART, chosen), dict.fromkeys(chosen, 0.0)
    enough = {k: part for k, part in moved.outcomes.items() if part.features >= _MIN_LOCAL_FEATURES}
    if enough:
        plain = CandidateOutcomes(enough)
        cross_fitted = CandidateOutcomes(
            {k: _shift(part, SIMILAR_PART, _cross_fitted_strengths(part)) for k, part in enough.items()}
        )
        if beats(cross_fitted, plain, _LOCAL_MARGIN):
            lower = _where_lower(cross_fitted, plain)
            products = {k: _similar_products(part)[1] for k, part in enough.items()}
            similar |= {k: lower[k] * _best_strength(part) for k, part in products.items()}
    if not any(chosen.values()) and not any(similar.values()):
        return None
    strengths = LocalStrengths(similar=_at_all_shots(similar, enough), chosen=_at_all_shots(chosen, chosen))
    at_marks = dict(zip(VALIDATION_SHOTS, strengths.similar, strict=True))
    return strengths, _shift_by(moved, SIMILAR_PART, at_marks)


def fit_known_strengths(rows: RowOutcomes) -> tuple[tuple[float, ...], RowOutcomes]:
    """Estimate the strengths of the local part of known features from outcomes at held-out ``rows``.

    Return them at ``VALIDATION_SHOTS`` observations of a row, with the outcomes that they give. The strength
    is 1 if this lowers the error by more than ``_KNOWN_MARGIN`` standard errors of the difference, over rows,
    and else 0; it is 0 at numbers of observations at which it does not lower the error.
    """
    if not lowers_error_at_rows(rows, _KNOWN_MARGIN):
        return (0.0,) * len(VALIDATION_SHOTS), rows
    lower = _where_lower(*reversed(by_observations(rows)))
    strengths = _at_all_shots(lower, lower)
    at_values = torch.tensor(strengths)[torch.bucketize(rows.observed, torch.tensor(VALIDATION_SHOTS))]
    return strengths, replace(rows, outcome=_shift(rows.outcome, KNOWN_PART, at_values))


def lowers_error_at_rows(rows: RowOutcomes, standard_errors: float = 0.0) -> bool:
    """Return whether the local part of known features lowers their error by more than ``standard_errors``."""
    if rows.outcome.local is None:
        return False
    plain, moved = by_observations(rows)
    return beats(moved, plain, standard_errors)


def by_observations(rows: RowOutcomes) -> tuple[CandidateOutcomes, CandidateOutcomes]:
    """Return the outcomes at rows by their number of observations, without and with the local part."""
    sizes = torch.unique(rows.observed).tolist()
    plain = CandidateOutcomes({size: rows.outcome.at(rows.observed == size) for size in sizes})
    return plain, _shift_by(plain, KNOWN_PART, dict.fromkeys(sizes, 1.0))


def _where_lower(candidate: CandidateOutcomes, other: CandidateOutcomes) -> dict[int, float]:
    """Return by shots 1 where the error of ``candidate`` is lower than that of ``other``, else 0."""
    errors, other_errors = candidate.errors(), other.errors()
    return {shots: float(errors[shots].mean < other_errors[shots].mean) for shots in errors}


def _at_all_shots(strengths: Mapping[int, float], known: Iterable[int]) -> tuple[float, ...]:
    """Return the strengths at ``VALIDATION_SHOTS``: those of the largest smaller number among ``known``."""
    marks = sorted(known)
    last = [max([mark for mark in marks if mark <= shots], default=None) for shots in VALIDATION_SHOTS]
    return tuple(0.0 if mark is None else strengths[mark] for mark in last)


def _shift_by(candidate: CandidateOutcomes, part: int, strengths: Mapping[int, float]) -> CandidateOutcomes:
    """Return the outcomes with a part of their local part at the ``strengths`` by shots."""
    return CandidateOutcomes(
        {shots: _shift(outcome, part, strengths[shots]) for shots, outcome in candidate.outcomes.items()}
    )


def _cross_fitted_strengths(outcome: Outcome) -> Tensor:
    """Return strengths of similar features for each value, estimated from other features: (n,)."""
    owner, products = _similar_products(outcome)
    order = torch.randperm(len(products), generator=torch.Generator().manual_seed(0))
    groups = range(min(_LOCAL_GROUPS, len(products)))
    strengths = torch.tensor([_best_strength(products[order % _LOCAL_GROUPS != group]) for group in groups])
    return strengths[(order % _LOCAL_GROUPS)[owner]]


def _best_strength(products: Tensor) -> float:
    """Return the strength of similar features with the least squared error of standardised residuals.

    It is at least 0, at most ``_MOST_STRENGTH``, and shrunk to 0. ``products`` (features, 2) are the second
    result of ``_similar_products``.
    """
    features, (product, square) = len(products), map(float, products.sum(0))
    strength = product / max(square, 1e-12)
    return min(max(strength, 0.0), _MOST_STRENGTH) * shrinkage(features)


def _similar_products(outcome: Outcome) -> tuple[Tensor, Tensor]:
    """Return the number of each value's feature (n,), and the products of features' local parts.

    They are Σ w·l·e and Σ w·l² over the values of each feature, with the weights w, the shifts l by similar
    features and the standardised residuals e: (features, 2).
    """
    features, owner = torch.unique(outcome.feature, return_inverse=True)
    local = cast(Tensor, outcome.local)[:, SIMILAR_PART].double()
    numbers = torch.stack([outcome.predictive.residuals(outcome.truth).double(), local], 1)
    products = outcome.weighted(local)[:, None] * numbers
    return owner, local.new_zeros(len(features), 2).index_add_(0, owner, products)


def _shift(outcome: Outcome, part: int, strengths: Tensor | float) -> Outcome:
    """Return the outcome with a part of its local part at ``strengths``, one number or (n,)."""
    if outcome.local is None:
        return outcome
    shift = (outcome.local[:, part] * strengths).to(outcome.predictive.logits.dtype)
    return replace(outcome, predictive=outcome.predictive.shifted(shift))
