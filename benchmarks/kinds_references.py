"""References made for one kind each: ordered probit, multinomial and Poisson factor models, and LightGBM.

``level_chances`` and ``count_rates`` fit factor models to the known cells of a table; the number of
factors and the strength of the prior are chosen on a tenth of the known cells.
``trees`` predicts each feature from all others, as an imputer does; the number of trees is chosen on a fifth
of the known cells of the feature. LightGBM is not needed elsewhere: without it ``trees`` returns None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import digamma
from scipy.stats import nbinom

LEVEL_SETTINGS = (
    (0, 1.0),
    (1, 1.0),
    (1, 4.0),
    (2, 1.0),
    (2, 4.0),
    (4, 4.0),
)  # factors, precision of loadings
COUNT_FACTORS = (1, 2, 4, 8)
STEPS, RATE = 200, 0.05
MAX_TREES, PATIENCE = 200, 20

Array = np.ndarray


def level_chances(codes: Array, known: Array, counts: Sequence[int], *, ordered: bool, seed: int) -> Array:
    """Return the probabilities (rows, features, levels) of a factor model of levels.

    A row has factors with a standard normal prior. Ordered levels have a probit link with cut points of each
    feature (a graded response model), others a softmax with an intercept of each level (multinomial).

    Parameters
    ----------
    codes : ndarray of shape (rows, features)
        The positions of the observed levels; NaN if there is none.
    known : ndarray of shape (rows, features)
        The cells to learn from.
    counts : sequence of int
        The number of levels of each feature.
    ordered : bool
        Whether the levels have an order.
    seed : int
        Seeds the cells for the choice of settings.
    """
    rows, columns = np.nonzero(known & ~np.isnan(codes))
    at = codes[rows, columns].astype(int)
    kept_back = np.random.default_rng([seed, 1]).random(len(rows)) < 0.1
    best = None
    for setting in LEVEL_SETTINGS:
        cells = (rows[~kept_back], columns[~kept_back], at[~kept_back])
        chances = _fit_levels(cells, codes.shape, counts, setting, ordered=ordered)
        loss = -np.log(np.maximum(chances[rows[kept_back], columns[kept_back], at[kept_back]], 1e-6)).mean()
        if best is None or loss < best[0]:
            best = (loss, setting)
    return _fit_levels((rows, columns, at), codes.shape, counts, best[1], ordered=ordered)


def _fit_levels(
    cells: tuple[Array, Array, Array], shape: tuple, counts: Sequence[int], setting: tuple, *, ordered: bool
) -> Array:
    torch.manual_seed(0)
    (factors, precision), width = setting, max(counts)
    rows, columns, at = map(torch.from_numpy, cells)
    shares = torch.full((shape[1], width), 0.5)
    shares.index_put_((columns, at), torch.ones(len(at)), accumulate=True)
    exists = torch.arange(width) < torch.tensor(counts)[:, None]
    shares = shares * exists / (shares * exists).sum(1, keepdim=True)
    theta = (0.1 * torch.randn(shape[0], max(1, factors))).requires_grad_()
    loadings = (0.1 * torch.randn(shape[1], 1 if ordered else width, max(1, factors))).requires_grad_()
    cut = torch.special.ndtri(shares.cumsum(1)[:, :-1].clamp(1e-4, 1 - 1e-4))
    gaps = torch.log((cut[:, 1:] - cut[:, :-1]).clamp(min=1e-3)).requires_grad_()
    first = cut[:, :1].clone().requires_grad_()
    intercepts = torch.log(shares.clamp(min=1e-6)).requires_grad_()
    parameters = [theta, loadings, *((gaps, first) if ordered else (intercepts,))]
    optimiser = torch.optim.Adam(parameters, lr=RATE)

    def chances() -> torch.Tensor:
        output = torch.einsum("if,jlf->ijl", theta, loadings) if factors else torch.zeros(*shape, 1)
        if not ordered:
            return torch.softmax((intercepts + output).masked_fill(~exists, -1e9), 2)
        edges = torch.cat([first, first + torch.exp(gaps).cumsum(1)], 1)
        below = torch.special.ndtr(edges - output).masked_fill(~exists[:, 1:], 1.0)
        ends = [torch.zeros(*shape, 1), below, torch.ones(*shape, 1)]
        return torch.diff(torch.cat(ends, 2), dim=2).clamp(min=1e-6)

    start = intercepts.detach().clone()
    for _ in range(STEPS if factors else 1):
        optimiser.zero_grad()
        loss = -torch.log(chances()[rows, columns, at]).sum()
        loss = loss + 0.5 * (theta**2).sum() + 0.5 * precision * (loadings**2).sum()
        loss = loss if ordered else loss + 0.5 * ((intercepts - start) ** 2).sum()
        loss.backward()
        if factors:
            optimiser.step()
    with torch.no_grad():
        return chances().numpy()


def count_rates(values: Array, known: Array, seed: int) -> tuple[Array, Array]:
    """Return the rates (rows, features) of Poisson factorisation, and the dispersion (features,) of counts.

    Factors of rows and features have gamma priors, with a mean-field posterior (Gopalan et al., 2015).
    Counts are scored as negative binomial, with the dispersion of the cells kept back for the choice of
    factors: their variance is larger than that of a Poisson distribution.
    """
    cells = known & ~np.isnan(values)
    kept_back = cells & (np.random.default_rng([seed, 1]).random(values.shape) < 0.1)
    best = None
    for factors in COUNT_FACTORS:
        rates = _fit_rates(values, cells & ~kept_back, factors)
        dispersion = dispersions(values, rates, kept_back)
        loss = -count_log_chances(values, rates, dispersion)[kept_back].mean()
        if best is None or loss < best[0]:
            best = (loss, factors, dispersion)
    return _fit_rates(values, cells, best[1]), best[2]


def _fit_rates(values: Array, cells: Array, factors: int, shape: float = 1.0) -> Array:
    generator = np.random.default_rng(0)
    counts, weight = np.where(cells, values, 0.0), cells.astype(float)
    usual = ((counts.sum(0) + 0.5) / (weight.sum(0) + 1))[:, None]
    row_shape, feature_shape = (generator.gamma(10, 0.1 * shape, (n, factors)) for n in values.shape)
    row_rate, feature_rate = np.full_like(row_shape, shape), shape / usual * np.ones(factors)
    for _ in range(STEPS):
        row_log = np.exp(digamma(row_shape)) / row_rate
        feature_log = np.exp(digamma(feature_shape)) / feature_rate
        ratio = counts / np.maximum(row_log @ feature_log.T, 1e-12)
        row_shape = shape + row_log * (ratio @ feature_log)
        row_rate = shape + weight @ (feature_shape / feature_rate)
        feature_shape = shape + feature_log * (ratio.T @ row_log)
        feature_rate = shape / usual + weight.T @ (row_shape / row_rate)
    return np.maximum((row_shape / row_rate) @ (feature_shape / feature_rate).T, 1e-6)


def dispersions(values: Array, rates: Array, cells: Array) -> Array:
    """Return the dispersion a of each feature with the highest likelihood; the variance is rate + a rate²."""
    grid = np.geomspace(1e-3, 30, 24)
    scores = np.stack(
        [
            np.where(cells, count_log_chances(values, rates, np.full(values.shape[1], a)), 0).sum(0)
            for a in grid
        ]
    )
    scores += 5 * scores.sum(1, keepdims=True) / max(cells.sum(), 1)  # as five cells of the usual dispersion
    return grid[scores.argmax(0)]


def count_log_chances(values: Array, rates: Array, dispersion: Array) -> Array:
    """Return the logarithms of the negative binomial probabilities (rows, features) of counts."""
    size = np.broadcast_to(1 / dispersion, values.shape)
    return nbinom.logpmf(np.nan_to_num(values), size, size / (size + rates))


def trees(values: Array, known: Array, kind: str, counts: Sequence[int], seed: int) -> list[Any] | None:
    """Predict each feature from all others by LightGBM; None if it is not installed.

    Parameters
    ----------
    values : ndarray of shape (rows, features)
        The values, or the positions of levels; NaN if there is none.
    known : ndarray of shape (rows, features)
        The cells to learn from.
    kind : str
        "levels", "count" or "amount".
    counts : sequence of int
        The number of levels of each feature, if it has levels.
    seed : int
        Seeds the cells that choose the number of trees.

    Returns
    -------
    list
        One item per feature: the probabilities of levels (rows, levels); otherwise the means (rows,) and the
        dispersion of counts or the deviation of amounts, from the cells that chose the number of trees.
    """
    try:
        import lightgbm
    except ImportError:
        return None
    generator, found = np.random.default_rng([seed, 1]), []
    inputs = np.where(known, values, np.nan)
    for j in range(values.shape[1]):
        others = np.delete(inputs, j, axis=1)
        mine = np.flatnonzero(known[:, j] & ~np.isnan(values[:, j]))
        check = generator.random(len(mine)) < 0.2
        check[:2] = [True, False]
        options = {"verbosity": -1, "num_leaves": 7, "min_data_in_leaf": 5, "learning_rate": 0.05,
                   "num_threads": 1, "seed": 0}  # fmt: skip
        options["objective"] = {"levels": "multiclass", "count": "poisson", "amount": "regression"}[kind]
        if kind == "levels":
            options["num_class"] = max(counts[j], 2)
        sets = [lightgbm.Dataset(others[part], values[part, j]) for part in (mine[~check], mine[check])]
        model = lightgbm.train(options, sets[0], MAX_TREES, [sets[1]],
                               callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)])  # fmt: skip
        guess = model.predict(others)
        if kind == "levels":
            shares = (np.bincount(values[mine, j].astype(int), minlength=guess.shape[1]) + 0.5) / len(mine)
            found.append(0.99 * guess + 0.01 * shares)
            continue
        rest = values[mine[check], j] - guess[mine[check]]
        if kind == "count":
            part = np.zeros((len(values), 1), dtype=bool)
            part[mine[check]] = True
            found.append((guess, dispersions(values[:, [j]], guess[:, None], part)[0]))
        else:
            found.append((guess, float(np.sqrt((rest**2).mean()))))
    return found
