"""The factorisation's closed forms against loops over rows and features in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headstart.algebra.symmetric import unpack
from headstart.backbones import factorisation
from headstart.backbones.factorisation import Factorisation, FactorisationConfig
from headstart.backbones.rows import RowPosterior, RowSums
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

Array = NDArray[np.float64]
MIXES = {
    "rating": [KindType.RATING],
    "real": [KindType.REAL],
    "binary": [KindType.BINARY],
    "mixed": [KindType.BINARY, KindType.RATING, KindType.REAL],
}
every_mix = pytest.mark.parametrize("kinds", MIXES.values(), ids=MIXES)
ROWS, FEATURES, LATENT = 25, 9, 3


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    """So that a difference is a difference of formulas."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made_up(
    kinds: list[int], rows: int = ROWS, features: int = FEATURES, seed: int = 0
) -> tuple[Cells, torch.Tensor]:
    """Observations of two hidden factors, and the kinds of the features."""
    random = np.random.default_rng(seed)
    kinds = np.resize(kinds, features)
    output = random.normal(size=(rows, 2)) @ random.normal(size=(2, features)) + random.normal(size=features)
    tossed = random.random(output.shape) < 1 / (1 + np.exp(-2 * output))
    rating = np.clip(np.round(4 * (0.5 + 0.15 * output)) / 4, 0, 1)
    values = np.where(kinds == KindType.BINARY, tossed, np.where(kinds == KindType.RATING, rating, output))
    line, index = np.nonzero(random.random(output.shape) < 0.6)
    line, index = line[line > 0], index[line > 0]  # nothing is known of the first row
    numbers = torch.from_numpy(values[line, index])
    cells = Cells.from_pairs(torch.from_numpy(line), torch.from_numpy(index), numbers, rows, features)
    return cells, torch.from_numpy(kinds)


def described(features: int) -> torch.Tensor:
    """Metadata of a label and a number a feature."""
    number = torch.linspace(-1, 1, features)
    return torch.stack([(torch.arange(features) % 2).to(number.dtype), number], dim=1)


class Watched(Factorisation):
    """Keeps what a sweep begins with, and the posteriors of rows, which training alone holds."""

    before: Slow  # all there was when the last sweep began
    rows: RowPosterior
    head_prior: tuple[torch.Tensor, torch.Tensor]  # that the last sweep began with

    def train_by_sweeps(
        self, cells: Cells, metadata: torch.Tensor, generator: torch.Generator
    ) -> Iterator[float]:
        self.taught = cells
        yield from super().train_by_sweeps(cells, metadata, generator)

    def _start(self, *given: object) -> RowPosterior:
        self.rows = super()._start(*given)
        return self.rows

    def _head_prior(self, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.before = Slow(self, self.taught)
        self.head_prior = super()._head_prior(*given)
        return self.head_prior

    def _posterior(
        self, cells: Cells, sums: list[RowSums], start: RowPosterior | None, passes: int | None = None
    ) -> RowPosterior:
        found = super()._posterior(cells, sums, start, passes)
        if start is not None:  # not a row that is merely asked about
            self.rows = found
        return found


def untrained(kinds: torch.Tensor, sweeps: int = 20) -> Watched:
    torch.manual_seed(0)
    config = FactorisationConfig(latent=LATENT, signature=2, sweeps=sweeps)
    return Watched(config, kinds, torch.zeros(0))


def sweeping(model: Factorisation, cells: Cells) -> Iterator[float]:
    return model.train_by_sweeps(cells, described(model.features), torch.Generator().manual_seed(0))


def swept(kinds: list[int], sweeps: int) -> tuple[Watched, Cells]:
    cells, every_kind = made_up(kinds)
    model = untrained(every_kind, sweeps)
    assert len(list(sweeping(model, cells))) == sweeps
    return model, cells


class Slow:
    """What the model holds, in numpy, with each update as its formula reads."""

    def __init__(self, model: Watched, cells: Cells) -> None:
        self.kinds = model.kinds.numpy()
        self.heads = np.c_[model.weight.detach().numpy(), model.bias.detach().numpy()].copy()
        self.spread = unpack(model.spread, LATENT + 1).numpy().copy()
        self.precision = model.precision.numpy().copy()
        self.signs = model.signature(cells).numpy()
        self.row_prior = self.signs @ model.row_map.numpy()
        self.row_covariance = model.row_covariance.numpy().copy()
        given = described(FEATURES).numpy()
        bend = given * (1 - given)
        self.described = np.c_[given, bend, bend * (1 - 2 * given), np.ones(FEATURES)]
        self.mean = model.rows.mean.numpy().copy()
        self.covariance = model.rows.covariance.numpy().copy()
        self.exactness = model.rows.exactness.numpy().copy()
        self.observed = list(
            zip(cells.lines.tolist(), cells.index.tolist(), cells.values.tolist(), strict=True)
        )

    def row_moment(self, i: int) -> Array:
        """E[(u, 1)(u, 1)ᵀ]."""
        row = np.r_[self.mean[i], 1]
        moment = np.outer(row, row)
        moment[:-1, :-1] += self.covariance[i]
        return moment

    def head_moment(self, j: int) -> Array:
        """E[(v, b)(v, b)ᵀ]."""
        return self.spread[j] + np.outer(self.heads[j], self.heads[j])

    def missed(self, i: int, j: int, x: float) -> float:
        """E[(x − u·v − b)²]."""
        output = np.r_[self.mean[i], 1] @ self.heads[j]
        return x**2 - 2 * x * output + np.trace(self.row_moment(i) @ self.head_moment(j))

    def as_gaussian(self, i: int, j: int, x: float) -> tuple[float, float]:
        if self.kinds[j] != KindType.BINARY:
            weight = self.precision[self.kinds[j]] * self.exactness[i]
            return weight, weight * x
        bound = np.sqrt(np.trace(self.row_moment(i) @ self.head_moment(j)))
        return np.tanh(bound / 2) / (2 * bound), x - 0.5

    def update_exactness(self) -> None:
        seen, squared = np.full(len(self.mean), 5.0), np.full(len(self.mean), 5.0)
        for i, j, x in self.observed:
            if self.kinds[j] != KindType.BINARY:
                seen[i] += 1
                squared[i] += self.precision[self.kinds[j]] * self.missed(i, j, x)
        self.exactness = seen / squared

    def update_rows(self) -> None:
        inverse = np.linalg.inv(self.row_covariance)
        means, covariances = [], []
        for i in range(len(self.mean)):
            precision, pull = inverse.copy(), inverse @ self.row_prior[i]
            for line, j, x in self.observed:
                if line == i:
                    weight, pulled = self.as_gaussian(i, j, x)
                    moment = self.head_moment(j)
                    precision += weight * moment[:-1, :-1]
                    pull = pull + pulled * self.heads[j, :-1] - weight * moment[:-1, -1]
            covariances.append(np.linalg.inv(precision))
            means.append(covariances[-1] @ pull)
        self.mean, self.covariance = np.array(means), np.array(covariances)

    def update_row_prior(self) -> None:
        gram = self.signs.T @ self.signs + np.eye(self.signs.shape[1])
        self.row_map = np.linalg.solve(gram, self.signs.T @ self.mean)
        rest = self.mean - self.signs @ self.row_map
        total = sum(c + np.outer(r, r) for c, r in zip(self.covariance, rest, strict=True))
        self.row_covariance = total / len(rest) + 1e-5 * np.eye(LATENT)

    def update_heads(self) -> None:
        inverse = np.linalg.inv(self.head_covariance)
        heads, spreads = [], []
        for j in range(len(self.heads)):
            precision, pull = inverse.copy(), inverse @ self.head_means[j]
            for i, index, x in self.observed:
                if index == j:
                    weight, pulled = self.as_gaussian(i, j, x)
                    precision += weight * self.row_moment(i)
                    pull = pull + pulled * np.r_[self.mean[i], 1]
            spreads.append(np.linalg.inv(precision))
            heads.append(spreads[-1] @ pull)
        self.heads, self.spread = np.array(heads), np.array(spreads)

    def update_head_prior(self) -> None:
        counts = np.bincount([j for _, j, _ in self.observed], minlength=len(self.heads)) + 1e-3
        counts = counts**0.75
        share = counts / counts.mean()
        gram, right = 0.2 * np.eye(self.described.shape[1]), np.zeros((self.described.shape[1], LATENT + 1))
        for weight, line, head in zip(share, self.described, self.heads, strict=True):
            gram = gram + weight * np.outer(line, line)
            right = right + weight * np.outer(line, head)
        self.head_means = self.described @ np.linalg.solve(gram, right)
        rest = self.heads - self.head_means
        total = sum(p * (s + np.outer(r, r)) for p, s, r in zip(share, self.spread, rest, strict=True))
        self.head_covariance = total / len(share) + 1e-5 * np.eye(LATENT + 1)

    def update_precision(self) -> None:
        squared: dict[int, list[float]] = {}
        for i, j, x in self.observed:
            squared.setdefault(int(self.kinds[j]), []).append(self.missed(i, j, x))
        for kind in set(squared) - {KindType.BINARY}:
            self.precision[kind] = 1 / max(np.mean(squared[kind]), 1e-4)


def same(found: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@every_mix
@pytest.mark.parametrize("sweeps", [0, 3])
def test_a_sweep_updates_everything_as_the_formulas_read(kinds: list[int], sweeps: int) -> None:
    cells, every_kind = made_up(kinds)
    model = untrained(every_kind)
    told = list(islice(sweeping(model, cells), sweeps + 1))
    slow = model.before
    slow.update_head_prior()
    same(model.head_prior[0], slow.head_means)
    same(model.head_prior[1], slow.head_covariance)
    slow.update_exactness()
    slow.update_rows()
    same(model.rows.exactness, slow.exactness)
    same(model.rows.mean, slow.mean)
    same(model.rows.covariance, slow.covariance)
    slow.update_row_prior()
    same(model.row_map, slow.row_map)
    same(model.row_covariance, slow.row_covariance)
    slow.update_precision()
    same(model.precision, slow.precision)
    slow.update_heads()
    same(model.weight, slow.heads[:, :-1])
    same(model.bias, slow.heads[:, -1])
    same(unpack(model.spread, LATENT + 1), slow.spread)
    assert len(told) == sweeps + 1
    assert np.isfinite(told).all()


@every_mix
def test_row_states_are_the_fixed_point_from_the_prior(kinds: list[int]) -> None:
    """Some passes of the rows' update, begun at the prior and the usual noise."""
    model, cells = swept(kinds, sweeps=3)
    found = model.states(cells)
    slow = Slow(model, cells)
    slow.mean = slow.row_prior
    slow.covariance = np.repeat(slow.row_covariance[None], ROWS, axis=0)
    slow.exactness = np.ones(ROWS)
    for turn in range(factorisation._BINARY_PASSES if KindType.BINARY in kinds else factorisation._PASSES):
        if turn > 0:
            slow.update_exactness()
        slow.update_rows()
    same(found.activation, slow.mean)
    same(found.code[:, :LATENT], slow.mean)
    same(found.code_std[:, :LATENT], np.sqrt(slow.covariance.diagonal(axis1=1, axis2=2)))
    same(found.code[:, LATENT], np.log(slow.exactness))
    same(found.code[:, LATENT + 2 :], slow.signs[:, 1:])
    assert found.code.shape[1] == model.code_size
    same(found.activation[0], slow.row_prior[0])  # of a row of which nothing is known


@every_mix
def test_an_unseen_row_is_known_as_one_of_the_table_with_the_same_observations(kinds: list[int]) -> None:
    model, cells = swept(kinds, sweeps=5)
    every = model.states(cells)
    for row in (0, 3, 17):
        own = cells.take(torch.tensor([row]))
        stranger = model.states(Cells(own.indptr, own.index, own.values, FEATURES))
        torch.testing.assert_close(stranger.code, every.code[[row]])
        torch.testing.assert_close(stranger.code_std, every.code_std[[row]])


@every_mix
def test_sweeps_lower_the_error_on_what_was_kept_back(kinds: list[int]) -> None:
    cells, kinds = made_up(kinds, rows=1000, features=20)
    held = torch.arange(len(cells.index)) % 6 == 0
    known, asked = cells.keep(~held), cells.keep(held)
    torch.manual_seed(0)
    model = Factorisation(FactorisationConfig(latent=4, signature=2, sweeps=15), kinds, torch.zeros(0))
    told, errors = [], []
    for error in sweeping(model, known):
        told.append(error)
        logits = model.heads.logits(model.states(known).activation)
        mean = model.likelihood.mean(logits[asked.lines, asked.index], kinds[asked.index])
        errors.append(float((mean - asked.values).square().mean()))
    assert len(errors) == 15
    assert errors[-1] < errors[0]
    assert min(errors[8:]) <= min(errors[:4])  # and later sweeps do no harm
    if KindType.BINARY not in kinds:
        assert told[-1] < told[0]
    means = torch.stack([known.transpose().take(torch.tensor([j])).values.mean() for j in range(20)])
    assert errors[-1] < 0.8 * float((means[asked.index] - asked.values).square().mean())


def test_a_feature_nobody_observed_gets_the_prior() -> None:
    model, cells = swept([KindType.RATING], sweeps=2)
    next(sweeping(model, cells.keep(cells.index != 4)))
    means, covariance = model.head_prior
    torch.testing.assert_close(torch.cat([model.weight[4], model.bias[4:5]]), means[4])
    torch.testing.assert_close(unpack(model.spread[4], LATENT + 1), covariance)


def test_no_observations_at_all_are_survived() -> None:
    cells, kinds = made_up([KindType.RATING])
    model = untrained(kinds)
    none = cells.keep(torch.zeros(len(cells.index), dtype=torch.bool))
    assert next(sweeping(model, none)) == 0
    assert bool(model.states(none).code.isfinite().all())


def test_training_leaves_nothing_behind_but_parameters_and_buffers() -> None:
    """What only training needs is gone with it, and the same start ends the same."""
    cells, kinds = made_up([KindType.BINARY, KindType.RATING])
    torch.manual_seed(0)
    config = FactorisationConfig(latent=LATENT, signature=2, sweeps=3)
    one, other = (Factorisation(config, kinds, torch.zeros(0)) for _ in range(2))
    held = set(vars(one))
    for model in (one, other):
        list(sweeping(model, cells))
    assert set(vars(one)) == held
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
