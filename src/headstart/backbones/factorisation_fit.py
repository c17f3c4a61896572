"""Training of the factorisation by sweeps over rows, features, priors and noise, with checkpoints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headstart.backbones.factorisation import Factorisation
from headstart.backbones.row_posterior import (
    RowBatch,
    RowPosterior,
    Zeros,
    have_row_weights,
    relative_precision,
    row_posterior,
)
from headstart.backbones.row_shift import fit_row_shift
from headstart.core.clicks import ZERO_WEIGHT, count_clicks, estimate_exposure, is_click, usual_count
from headstart.core.devices import move
from headstart.core.types import Description, Heads
from headstart.distributed import main_process_decides, process_group, run_in_each_process
from headstart.errors import ModelFileError
from headstart.files import explain_storage_error, pack_tensors, read_tensors, write_bytes
from headstart.linalg.packed import (
    append_one,
    inverse,
    make_positive_definite,
    outer_products,
    pack,
    packed_size,
    solve,
    traces,
    unpack,
)
from headstart.linalg.ragged import (
    BUDGET,
    DENSE_FROM,
    PER_CELL,
    PER_NUMBER,
    TransposedSum,
    column_sums,
    gram,
    line_blocks,
    row_slices,
    segment_sum,
)
from headstart.linalg.ridge import Group, LooRidge, make_groups, predict_heads, reliability
from headstart.linalg.row_sharded import (
    draw_normal_rows,
    feature_counts,
    feature_sums,
    global_count,
    global_mean,
    global_start,
    global_std,
    global_sum,
)
from headstart.parallel import parallel_map
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

_PROBABILITIES = 0.02, 0.98  # limits of outputs as probabilities

# Where the factors have shrunk to zero after the first sweeps, they start again. Then some sweeps keep the
# first priors and noise, which otherwise follow factors that are small because they are new.
_FIRST_SWEEPS, _KEPT_PRIORS = 4, 2

_PART_NUMBERS = 1 << 19  # entries of the rows' matrices in a part, which stay in a processor's cache

_LEAST_EXPLAINED = 1e-2  # variance of values by factors that have not shrunk to zero, to that of the noise

_ROW_TENSORS = ("mean", "covariance", "relative_precision")  # of a ``RowPosterior``, in a checkpoint

_CHOICE_INTERVAL = 5  # sweeps between two choices of the regressions' penalties

_MAX_RELATIVE_PRECISION = 1e4  # of a feature's observations

_MIN_VARIANCE = 1e-6  # of an observation, on the models' scale

# The precision of clicks relative to the most likely one, which zeros dominate, as nearly all cells are. With
# a higher precision more factors are kept, and rows are ranked better (measured on held-out rows).
_CLICK_PRECISION = 2.0


def whiten(backbone: Factorisation) -> None:
    """Change the basis of the factors such that their prior has mean 0 and the identity as covariance.

    The mean second moment of heads becomes diagonal, so that variances of factors are comparable.
    """
    size = backbone.latent + 1
    centre = backbone.row_map[0].double().clone()
    root = torch.linalg.cholesky(make_positive_definite(backbone.row_covariance.double()))
    metric = backbone.heads.mean_weight_moment().double()
    root = root @ torch.linalg.eigh(root.T @ metric @ root).eigenvectors.flip(1)
    change = torch.zeros(size, size, dtype=torch.float64)  # old factors = centre + root·new
    change[:-1, :-1], change[-1, :-1], change[-1, -1] = root.T, centre, 1.0
    heads = backbone.heads.stacked.double() @ change.T
    for part in torch.split(torch.arange(len(heads)), 4096):
        covariances = change @ unpack(backbone.covariance[part].double(), size) @ change.T
        backbone.covariance[part] = pack(covariances).to(backbone.covariance.dtype)
    backbone.weight.copy_(heads[:, :-1])
    backbone.bias.copy_(heads[:, -1])
    row_map = backbone.row_map.double()
    row_map[0] = 0.0
    backbone.row_map.copy_(torch.linalg.solve(root, row_map.T).T)
    backbone.row_covariance.copy_(torch.eye(backbone.latent))


def to_logistic(backbone: Factorisation) -> None:
    """Convert heads of the numbers 0 and 1 to logistic heads, equal to first order at an average row."""
    backbone.kinds = torch.full_like(backbone.kinds, KindType.BINARY)
    output = backbone.weight @ backbone.row_map[0] + backbone.bias
    probability = output.clamp(*_PROBABILITIES)
    slope = probability * (1 - probability)
    backbone.bias.copy_(torch.logit(probability) + (backbone.bias - output) / slope)
    backbone.weight.copy_(backbone.weight / slope[:, None])
    backbone.covariance.copy_(backbone.covariance / slope[:, None] ** 2)
    backbone.relative_precision.fill_(1.0)


Errors = dict[int, tuple[float, float]]  # by kind: the sum of squared errors, and the sum of their weights


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the observations of each feature.

    The weight of a rating is the relative precision of its row; others have that of ``gaussian_terms``.
    """

    total: Tensor  # (features, packed): second moments of rows' factors
    linear: Tensor  # (features, latent + 1): value × factors
    squares: Tensor  # (features,): of values, in double precision


@dataclass(frozen=True)
class RowBlock:
    """Range of rows with their observations, the same in every sweep."""

    rows: slice
    all_cells: Cells

    @property
    def cells(self) -> Cells:
        """The observations of these rows, as views.

        Each access makes new cells: the cached properties of all blocks together would take much memory. A
        small table has one block.
        """
        if self.rows.start == 0 and self.rows.stop == len(self.all_cells):
            return self.all_cells
        return self.all_cells.block(self.rows.start, self.rows.stop)

    def parts(self, per_row: int) -> list[RowBlock]:
        """Split the block into parts for threads and caches; a row's matrix has ``per_row`` entries."""
        # Each part reads all heads once: it should have several times as many observations.
        observations = int(self.all_cells.indptr[self.rows.stop] - self.all_cells.indptr[self.rows.start])
        rows = self.rows.stop - self.rows.start
        most = max(1, observations // (4 * self.all_cells.width))
        parts = min(most, -(-rows * per_row // _PART_NUMBERS))
        step = -(-rows // max(1, parts))
        starts = range(self.rows.start, self.rows.stop, max(1, step))
        return [RowBlock(slice(start, min(self.rows.stop, start + step)), self.all_cells) for start in starts]

    @cached_property
    def back(self) -> TransposedSum:
        """The observations sorted by feature, once for all sweeps: 8 bytes each."""
        return TransposedSum(self.cells)


def row_blocks(backbone: Factorisation, cells: Cells) -> list[RowBlock]:
    """Split rows into blocks, for all sweeps with the same kinds and cells."""
    # If weights depend on rows, a dense product of rows and all features can be the cheapest.
    per_cell = PER_CELL + (int(8 / DENSE_FROM) if have_row_weights(backbone.kinds) else 0)
    blocks = line_blocks(cells, PER_NUMBER * (backbone.latent + 1) ** 2, per_cell=per_cell)
    return [RowBlock(rows, cells) for rows, _ in blocks]


def sweep_rows(
    backbone: Factorisation,
    blocks: list[RowBlock],
    signatures: Tensor,
    rows: RowPosterior,
    second: Tensor | None = None,
) -> Errors:
    """Update the posteriors ``rows`` once, in place, and return the errors of the observations.

    ``second`` are the ``second_moments`` of the backbone. Arrays of size rows × latent² exist for one block
    at a time.
    """
    moments = backbone.head_moments(second)

    def update(block: RowBlock) -> list[tuple[int, float, float]]:
        batch = RowBatch(block.cells, moments)
        now = row_posterior(
            batch,
            backbone.factor_prior(signatures[block.rows]),
            passes=1,
            start=rows.at(block.rows),
            noisy=backbone.noisy_rows,
        )
        rows.put(block.rows, now)
        return list(_errors(batch, now))

    errors: Errors = {}
    parts = [part for block in blocks for part in block.parts(backbone.latent**2)]
    for block_errors in parallel_map(update, parts):
        for kind, squared, count in block_errors:
            before = errors.get(kind, (0.0, 0.0))
            errors[kind] = (before[0] + squared, before[1] + count)
    local = torch.tensor([errors.get(kind, (0.0, 0.0)) for kind in KindType], dtype=torch.float64)
    errors = {
        int(kind): (squared, count)
        for kind, (squared, count) in zip(KindType, global_sum(local).tolist(), strict=True)
        if count > 0
    }
    for kind in (KindType.RATING, KindType.REAL):  # their weights include the precision
        if kind in errors:
            squared, count = errors[kind]
            errors[kind] = (squared / float(backbone.precision[kind]), max(1.0, count))
    return errors


def _errors(batch: RowBatch, rows: RowPosterior) -> Iterator[tuple[int, float, float]]:
    """Yield the kind, the sum of expected squared errors and the sum of weights of ratings and of reals."""
    if batch.ratings is not None:
        squared = batch.ratings.squared_errors(rows).double().sum()
        yield KindType.RATING, float(squared), float(batch.ratings.counts.double().sum())
    if not batch.has_row_weights:
        return
    clicks = is_click(batch.kinds)
    if bool(clicks.any()):
        mean, second = batch.outputs(rows)
        counts = batch.weigh(torch.ones_like(mean))[clicks]
        squared = counts * (1 - 2 * mean + second)[clicks]
        yield KindType.CLICK, float(squared.double().sum()), float(counts.double().sum())
    if batch.moments.zeros is not None:
        yield KindType.CLICK, *_squared_zeros(batch, rows)
    real = batch.kinds == KindType.REAL
    if bool(real.any()):
        mean, second = batch.outputs(rows)
        squared = (batch.values - mean) ** 2 + (second - mean**2).clamp(min=0)
        weights = batch.gaussian_terms(rows)[0]
        counts = batch.weigh(torch.ones_like(squared))[real]
        yield KindType.REAL, float((weights * squared)[real].double().sum()), float(counts.double().sum())


def _squared_zeros(batch: RowBatch, rows: RowPosterior) -> tuple[float, float]:
    """Return Σ weight · E[(u·v + b)²] over the zeros of clicks, and the sum of the weights."""
    moments, zeros = batch.moments, cast(Zeros, batch.moments.zeros)
    exposure = estimate_exposure(count_clicks(batch.cells, moments.kinds), zeros.usual_clicks)
    clicks = is_click(moments.kinds)
    expected = traces(rows.moments(), zeros.moments.expand(len(rows.mean), -1)).double() @ exposure
    # The zeros are weighted by the precision of clicks, which all click features share.
    weight = float(ZERO_WEIGHT * exposure.sum() * clicks.sum())
    return float(expected / moments.precision[clicks][0].double()), weight


def sum_features(
    backbone: Factorisation, blocks: list[RowBlock], rows: RowPosterior, second: Tensor | None = None
) -> FeatureSums:
    """Compute the sums over the observations of each feature, for the update of heads.

    ``second`` is as in ``sweep_rows``.
    """
    moments, size = backbone.head_moments(second), backbone.latent + 1
    total = torch.zeros(backbone.features, packed_size(size))
    linear = torch.zeros(backbone.features, size)
    squared_values = torch.zeros(backbone.features, dtype=torch.float64)
    exposed = torch.zeros_like(total[0])  # Σ exposure · E[(u, 1)(u, 1)ᵀ] over rows
    for block in blocks:
        now, batch = rows.at(block.rows), RowBatch(block.cells, moments)
        # The precision of a feature's ratings is applied to its sums.
        weights, values = batch.terms(now, now.relative_precision[batch.cells.lines])
        block.back.add(total, now.moments(), weights)
        block.back.add(linear, append_one(now.mean), values)
        squared = (weights * batch.values**2).double()
        squared_values += torch.bincount(batch.cells.index, squared, minlength=backbone.features)
        if moments.zeros is not None:
            clicks = count_clicks(block.cells, backbone.kinds)
            exposure = estimate_exposure(clicks, moments.zeros.usual_clicks).to(total.dtype)
            exposed += exposure @ now.moments()
    sums = FeatureSums(global_sum(total), global_sum(linear), global_sum(squared_values))
    if moments.zeros is not None:
        weights = torch.where(is_click(backbone.kinds), ZERO_WEIGHT * moments.precision, 0.0)
        sums.total.addr_(weights, global_sum(exposed))
    return sums


class SweepProgress:
    """Checkpoints of training: a file with the state of features, and one file per process with its rows.

    The first file names the others. It is replaced atomically, after they are written and before old ones are
    removed, so that a checkpoint is complete at any moment.

    Parameters
    ----------
    path : Path
        The file, in a folder that all processes can read.
    seconds : float
        The least time between two checkpoints.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        self._saved = time.monotonic()

    # -- writing ----------------------------------------------------------------------------------

    def keep(self, training: FactorisationTraining, turn: int) -> None:
        """Write a checkpoint after sweep ``turn`` if it is due; always after the last one."""
        last = turn == training.backbone.sweeps
        if not main_process_decides(last or time.monotonic() - self._saved >= self.seconds):
            return
        facts: dict[str, Any] = {"turn": turn, "last_kept": training.last_kept, "rows": [], "regressions": {}}
        if not last:
            facts["rows"] = self._write_rows(training.rows, turn)
        tensors = {f"backbone/{name}": tensor for name, tensor in training.backbone.state_dict().items()}
        tensors |= {"generator": training.generator.get_state()}
        tensors |= {"prior_means": training.prior_means, "prior_covariance": training.prior_covariance}
        for name in ("head", "row"):
            parts, facts["regressions"][name] = _pack_regression(getattr(training, f"{name}_regression"))
            tensors |= {f"{name}/{key}": tensor for key, tensor in parts.items()}
        if process_group().is_main:
            contiguous = {name: tensor.clone() for name, tensor in tensors.items()}
            write_bytes(self.path, pack_tensors(contiguous, facts))
            self._remove_other_rows({name for _, _, name in facts["rows"]})
        self._saved = time.monotonic()

    def _write_rows(self, rows: RowPosterior, turn: int) -> list[tuple[int, int, str]]:
        """Write the rows of this process; return first row, number of rows and file of each process."""
        group, start = process_group(), global_start(len(rows.mean))
        name = f"{self.path.stem}.rows-{turn}-{start}-of-{group.size}.safetensors"
        write_bytes(
            self.path.with_name(name), pack_tensors({part: getattr(rows, part) for part in _ROW_TENSORS})
        )
        names, counts = group.all_gather_texts([name]), group.sizes(len(rows.mean))  # these wait for all
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return [(first, count, files[0]) for first, count, files in zip(starts, counts, names, strict=True)]

    def _remove_other_rows(self, current: set[str]) -> None:
        """Remove the files of rows whose names are not in ``current``."""
        pattern = re.compile(rf"{re.escape(self.path.stem)}\.rows-\d+-\d+-of-\d+\.safetensors")
        with explain_storage_error(self.path):
            for path in self.path.parent.iterdir():
                if pattern.fullmatch(path.name) and path.name not in current:
                    path.unlink(missing_ok=True)

    # -- reading ----------------------------------------------------------------------------------

    def restore(self, training: FactorisationTraining) -> int:
        """Restore ``training`` from the file; return the number of its sweeps, 0 if there is no file."""
        if not main_process_decides(self.path.exists()):
            return 0
        tensors, facts = run_in_each_process(lambda: read_tensors(self.path))
        generator, device = tensors.pop("generator"), training.cells.values.device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            parts.setdefault(part, {})[key] = tensor
        # Assign instead of copying: the backbone shares the tensor of kinds with the table.
        training.backbone.load_state_dict(parts["backbone"], assign=True)
        training.generator.set_state(generator)
        training.prior_means, training.prior_covariance = tensors["prior_means"], tensors["prior_covariance"]
        for name in ("head", "row"):
            regression = _unpack_regression(parts[name], facts["regressions"][name], shared=name == "row")
            setattr(training, f"{name}_regression", regression)
        if facts["rows"]:
            start = global_start(len(training.cells))
            end = start + len(training.cells)
            rows = run_in_each_process(lambda: self._read_rows(facts["rows"], start, end))
            training.rows = move(rows, device)
        training.last_kept = int(facts["last_kept"])
        return int(facts["turn"])

    def _read_rows(self, files: list[tuple[int, int, str]], begin: int, end: int) -> RowPosterior:
        """Read the rows from ``begin`` up to ``end`` from the files that contain them."""
        tensors: dict[str, list[Tensor]] = {name: [] for name in _ROW_TENSORS}
        for start, count, name in files:
            low, high = max(begin, start) - start, min(end, start + count) - start
            if low >= high:
                continue
            path = self.path.with_name(name)
            try:
                with safe_open(path, framework="pt") as file:
                    for part, slices in tensors.items():
                        slices.append(file.get_slice(part)[low:high])
            except (OSError, SafetensorError, FileNotFoundError) as error:
                raise ModelFileError(f"{path} is missing or damaged ({error}); start anew") from None
        if not tensors["mean"]:  # all rows of this process are empty
            with safe_open(self.path.with_name(files[0][2]), framework="pt") as file:
                tensors = {part: [file.get_slice(part)[:0]] for part in _ROW_TENSORS}
        return RowPosterior(*(torch.cat(slices) for slices in tensors.values()))


def _pack_regression(regression: LooRidge) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of a regression as tensors and as JSON."""
    tensors = {"strengths": regression.strengths, "gains": regression.gains}
    for position, group in enumerate(regression.groups):
        tensors |= {f"{position}/{name}": tensor for name, tensor in vars(group).items()}
    return tensors, {
        "groups": len(regression.groups),
        "members": regression.members,
        "tried": regression.tried,
    }


def _unpack_regression(tensors: dict[str, Tensor], facts: dict[str, Any], *, shared: bool) -> LooRidge:
    """Restore a regression from the state of ``_pack_regression``."""
    groups = [
        Group(*(tensors[f"{position}/{name}"] for name in ("columns", "centre", "basis")))
        for position in range(facts["groups"])
    ]
    regression = LooRidge(groups, shared=shared)
    regression.members, regression.tried = facts["members"], facts["tried"]
    regression.strengths, regression.gains = tensors["strengths"], tensors["gains"]
    return regression


class FactorisationTraining:
    """Training of a factorisation, with the state that exists only during training.

    A regression on all *other* features predicts the prior mean of a feature's head from its metadata, and a
    regression on all other rows that of a row's factors from its signature. Without leaving out the feature
    or row, regressions would be fitted to their own predictions.
    """

    def __init__(
        self, backbone: Factorisation, cells: Cells, description: Description, generator: torch.Generator
    ) -> None:
        # Rows without observations are uninformative and would slow down convergence. A table without any
        # observations keeps its rows.
        observed = torch.nonzero(cells.counts)[:, 0]
        total = global_count(len(observed))  # every process must take part in the sum
        if total and len(observed) < len(cells):
            cells = cells.take(observed)
        self.backbone, self.generator, self.weights = backbone, generator, cells.weights
        # The first sweeps weight all observations equally: with small weights factors would shrink to zero.
        self.cells = replace(cells, weights=None)
        self.counts = self.weighted_counts = feature_counts(cells)
        # Popular features differ from rarely observed ones.
        popularity = self.counts.to(description.numbers.dtype).log1p()[:, None]
        # Splines are left to the prior of new heads: in the sweeps they made rows of spectra less exact.
        cubic = description.with_cubic_terms(description.nonlinear_columns())
        self.description = cubic.with_group(popularity)
        self.latent, self.size = backbone.latent, backbone.latent + 1
        self.rows: RowPosterior
        self.head_regression: LooRidge
        self.row_regression: LooRidge
        self.prior_means: Tensor  # (features, size): of heads
        self.prior_covariance: Tensor  # (size, size): of heads around these
        # The bound for the logistic link is loose and shrinks useful factors to zero. If all features are
        # binary, the sweeps model 0 and 1 as numbers, and only the last one uses the link.
        self.as_numbers = backbone.sweeps > 1 and bool((backbone.kinds == KindType.BINARY).all())
        self.freedom = 1.0  # degrees of freedom per observation
        self.last_kept = 0  # the last sweep that keeps the first priors and noise

    @torch.no_grad()
    def sweeps(self, progress: SweepProgress | None = None) -> Iterator[float]:
        """Update all posteriors, priors and noise in each sweep; yield the standard deviation of the errors.

        With ``progress``, continue from its checkpoint and write new ones.
        """
        backbone, cells, description = self.backbone, self.cells, self.description
        finished_sweeps = 0 if progress is None else progress.restore(self)
        if finished_sweeps == backbone.sweeps:
            return
        # Sweeps change the shrinkage of signatures, but not their differences from the mean.
        differences = backbone.signature.differences(cells) if finished_sweeps else self._begin()
        signatures = backbone.signature.shrink(differences, cells.counts)
        blocks = row_blocks(backbone, cells)
        for turn in range(finished_sweeps + 1, backbone.sweeps + 1):
            choosing, keeps_priors = turn % _CHOICE_INTERVAL == 0, turn <= self.last_kept
            if self.weights is not None and cells.weights is None and turn > backbone.sweeps // 2:
                cells = self.cells = replace(cells, weights=self.weights)
                local = torch.bincount(cells.index, self.weights, minlength=cells.width)
                self.weighted_counts = global_sum(local)
                blocks = row_blocks(backbone, cells)
            if self.as_numbers and description.levels is not None and turn > backbone.sweeps // 2:
                self._weigh_levels(description.levels)
            if self.as_numbers and turn == backbone.sweeps:
                to_logistic(backbone)
                self.freedom = 1.0
                blocks = row_blocks(backbone, cells)
                self.prior_covariance = torch.eye(self.size, dtype=torch.float64)
                self._update_head_prior(choosing=True)
            second = backbone.second_moments()  # of heads, which change at the end of the sweep
            errors = sweep_rows(backbone, blocks, signatures, self.rows, second)
            if not keeps_priors:
                self._update_row_prior(self.rows, signatures, choosing=choosing)
                self._update_precision(errors)
            if choosing:
                signatures = backbone.signature.shrink(differences, cells.counts)
            self._update_heads(
                sum_features(backbone, blocks, self.rows, second), self.prior_means, self.prior_covariance
            )
            self._update_head_prior(choosing=choosing, keep_covariance=keeps_priors)
            restarts = turn == _FIRST_SWEEPS < backbone.sweeps - _KEPT_PRIORS
            if restarts and self._has_shrunk_to_zero():
                self._restart()
                self.last_kept = turn + _KEPT_PRIORS
            if turn == backbone.sweeps:
                whiten(backbone)
                backbone.keep_zeros()
                fit_row_shift(backbone, cells, self.generator)
            if progress is not None:
                progress.keep(self, turn)
            yield _root_mean_square(errors)

    def _weigh_levels(self, levels: Tensor) -> None:
        """Set the noise of the ``levels`` (features,) of categories, which exclude each other.

        The levels of one category, with shares p, have the covariance diag(p) − p·pᵀ. As independent columns
        of variance p·(1 − p), they would need factors of their own to explain that they exclude each other,
        and these predict nothing. With variance p there is nothing left to explain: the covariance of
        (y − p)/√p is a projection. A category of L levels has L − 1 degrees of freedom. The first sweeps use
        equal noise, so that useful factors are found before others shrink to zero.
        """
        counts = self.counts.double()
        share = feature_sums(self.cells, self.cells.values).double() / counts.clamp(min=1)
        share = share.clamp(*_PROBABILITIES)
        precision = 1 / torch.where(levels, share, share * (1 - share))
        self.backbone.relative_precision.copy_(precision / precision.mean())
        self.freedom = float((counts * torch.where(levels, 1 - share, 1.0)).sum() / counts.sum().clamp(min=1))

    def _begin(self) -> Tensor:
        """Fit the signature and initialise the state; return ``Signature.differences``."""
        backbone, cells = self.backbone, self.cells
        backbone.signature.fit(cells, self.generator)
        if self.as_numbers:
            backbone.kinds = torch.full_like(backbone.kinds, KindType.RATING)
        self.rows = self._initialise_factors()
        groups = make_groups(self.description.numbers, self.description.groups, self.generator)
        self.head_regression = LooRidge(groups)
        differences = backbone.signature.differences(cells)
        signatures = backbone.signature.shrink(differences, cells.counts)
        columns = torch.arange(1, signatures.shape[1])
        parts = [part for part in (columns[:1], columns[1:]) if len(part)]  # the count, then the rest
        self.row_regression = LooRidge(make_groups(signatures, parts, shared=True), shared=True)
        self.prior_covariance = torch.eye(self.size, dtype=torch.float64)
        self._update_head_prior(choosing=False)
        return differences

    def _has_shrunk_to_zero(self) -> bool:
        """Return whether factors explain hardly any variance of the values; False for clicks."""
        backbone = self.backbone
        if backbone.usual_clicks is not None:
            return False
        rows = max(1, global_count(len(self.rows.mean)))
        mean = global_sum(self.rows.mean.sum(0)) / rows
        spread = global_sum(gram(self.rows.mean, self.rows.mean)) / rows - torch.outer(mean, mean)
        weight = backbone.weight.double()
        explained = (weight @ spread.double() * weight).sum(1) * backbone.observation_precision
        return float((self.counts * explained).sum() / self.counts.sum().clamp(min=1)) < _LEAST_EXPLAINED

    def _restart(self) -> None:
        """Start again from small random factors, with the first priors and noise."""
        backbone = self.backbone
        first = type(backbone)(backbone.config, backbone.kinds, backbone.grid)
        for name in ("covariance", "row_map", "row_covariance", "precision", "relative_precision"):
            getattr(backbone, name).copy_(getattr(first, name))
        self.rows = self._initialise_factors()
        self.prior_covariance = torch.eye(self.size, dtype=torch.float64)
        self._update_head_prior(choosing=False, keep_covariance=True)

    def _update_head_prior(self, *, choosing: bool, keep_covariance: bool = False) -> None:
        """Update the means of the heads' prior, and its covariance unless ``keep_covariance``."""
        self.prior_means, covariance = self._head_prior(self.rows, self.prior_covariance, choosing=choosing)
        if not keep_covariance:
            self.prior_covariance = covariance

    def _initialise_factors(self) -> RowPosterior:
        """Initialise heads and rows by the means of rows and features, and small random factors."""
        backbone, cells = self.backbone, self.cells
        binary = backbone.kinds == KindType.BINARY
        if backbone.usual_clicks is not None:
            backbone.usual_clicks.copy_(usual_count(count_clicks(cells, backbone.kinds)))
            cells = self._with_click_shares(cells)
        sums = feature_sums(cells, cells.values)
        feature_means = (sums / self.counts.clamp(min=1e-9)).to(backbone.bias.dtype)
        mean = global_mean(cells.values)
        feature_means = mean + self.counts / (self.counts + 5) * (feature_means - mean)
        row_means = _row_means(cells, feature_means, 5.0)
        scale = global_std(row_means) + 1e-3
        # Outputs of a logistic link are larger than ratings, and factors that start too small stay zero.
        size = torch.where(binary, 1.0, 0.1)[:, None]
        backbone.weight.copy_(size * torch.randn(backbone.weight.shape, generator=self.generator))
        backbone.weight[:, 0] = torch.where(binary, 4 * scale, scale)  # the first factor is the row's mean
        bias = torch.where(binary, torch.logit(feature_means.clamp(*_PROBABILITIES)), feature_means)
        backbone.bias.copy_(bias)
        others = 0.1 * draw_normal_rows(len(row_means), self.latent - 1, self.generator)
        covariance = pack(0.1 * torch.eye(self.latent)).repeat(len(row_means), 1)
        factors = torch.cat([row_means[:, None] / scale, others], 1)
        return RowPosterior(factors, covariance, torch.ones(len(row_means)))

    def _with_click_shares(self, cells: Cells) -> Cells:
        """Return the cells with each click replaced by the usual output of its row and feature."""
        rows, features = global_count(len(cells)), cells.width
        by_feature = self.counts / (self.counts + ZERO_WEIGHT * rows)
        by_row = cells.counts / (cells.counts + ZERO_WEIGHT * features)
        clicks = is_click(self.backbone.kinds)[cells.index]
        shares = by_feature[cells.index] * by_row[cells.lines] / max(global_mean(by_row), 1e-9)
        return replace(cells, values=torch.where(clicks, shares.to(cells.values.dtype), cells.values))

    # -- the updates of a sweep -------------------------------------------------------------------

    def _update_row_prior(self, rows: RowPosterior, signatures: Tensor, *, choosing: bool) -> None:
        """Regress rows' factors on signatures, with leave-one-out predictions."""
        backbone, cells, regression = self.backbone, self.cells, self.row_regression
        weights = torch.ones(len(cells))
        if choosing:
            metric = backbone.heads.mean_weight_moment()
            regression.choose(signatures, rows.mean, weights, metric)
        predicted = regression.fit(signatures, rows.mean, weights)
        matrix, constant = regression.linear_map(signatures.shape[1])
        matrix[0] = constant
        backbone.row_map.copy_(matrix)
        if choosing:
            metric = metric.to(rows.mean.dtype)
            backbone.signature.choose_shrinkage(cells, rows.mean, backbone.row_map, metric, self.generator)
        residual = rows.mean - predicted
        covariance = global_sum(unpack(column_sums(rows.covariance), self.latent) + gram(residual, residual))
        backbone.row_covariance.copy_(
            make_positive_definite(covariance / max(1, global_count(len(residual))))
        )

    def _head_prior(
        self, rows: RowPosterior, prior_covariance: Tensor, *, choosing: bool
    ) -> tuple[Tensor, Tensor]:
        """Predict each head from metadata by a regression on the others; return means and covariance."""
        backbone, numbers, regression = self.backbone, self.description.numbers, self.head_regression
        heads = backbone.heads.stacked
        metric = rows.mean_moment()
        weights = reliability(backbone.covariance, prior_covariance, metric)
        if choosing:
            regression.choose(numbers, heads, weights, metric)
        return predict_heads(regression, numbers, heads, backbone.covariance, weights)

    def _update_precision(self, errors: Errors) -> None:
        """Update the precision of each kind."""
        for kind, (squared, count) in errors.items():
            variance = squared / count
            factor = _CLICK_PRECISION if kind == KindType.CLICK else self.freedom
            self.backbone.precision[kind] = factor / max(variance, _MIN_VARIANCE)

    def _update_heads(self, sums: FeatureSums, prior_means: Tensor, prior_covariance: Tensor) -> None:
        """Update the posteriors of the features' heads, and their relative precisions."""
        backbone = self.backbone
        factors = torch.where(backbone.kinds == KindType.RATING, backbone.observation_precision, 1.0)
        prior = inverse(prior_covariance).to(sums.total.dtype)

        def update(part: slice) -> None:
            total = unpack(factors[part, None] * sums.total[part], self.size)
            weighted = factors[part, None] * sums.linear[part]
            heads, covariance = solve(prior + total, weighted + prior_means[part] @ prior)
            backbone.weight[part] = heads[:, :-1]
            backbone.bias[part] = heads[:, -1]
            backbone.covariance[part] = pack(covariance)
            if backbone.noisy_rows:
                self._update_relative_precision(part, total, weighted, factors[part] * sums.squares[part])

        for _ in parallel_map(update, row_slices(len(factors), PER_NUMBER * self.size**2, BUDGET // 4)):
            pass

    def _update_relative_precision(
        self, part: slice, total: Tensor, weighted: Tensor, values: Tensor
    ) -> None:
        """Estimate the relative precision of features, shrunk to 1: of ratings, of reals if so set, else 1.

        ``total``, ``weighted`` and ``values`` are the weighted sums of second moments, of values × factors,
        and of squared values.
        """
        backbone, counts = self.backbone, self.weighted_counts[part]
        heads = Heads(backbone.weight[part], backbone.bias[part]).stacked
        second = unpack(backbone.covariance[part] + outer_products(heads), self.size)
        expected = (total * second).sum((1, 2))
        squared = values - 2 * (weighted * heads).sum(1) + expected
        relative = relative_precision(counts, squared / backbone.relative_precision[part])
        estimated = backbone.kinds[part] == KindType.RATING
        if backbone.config.noise_by_feature:
            estimated |= backbone.kinds[part] == KindType.REAL
        backbone.relative_precision[part] = torch.where(
            estimated,
            relative.clamp(max=_MAX_RELATIVE_PRECISION).to(backbone.relative_precision.dtype),
            1.0,
        )


def _root_mean_square(errors: Errors) -> float:
    """Return the root mean square of the errors of all kinds."""
    squares = sum(squared for squared, _ in errors.values())
    count = sum(count for _, count in errors.values())
    return float(max(squares / max(count, 1.0), 0.0) ** 0.5)


def _row_means(cells: Cells, feature_means: Tensor, shrink: float) -> Tensor:
    """Compute each row's mean deviation from ``feature_means``, with ``shrink`` zeros added: (rows,)."""
    means = torch.zeros(len(cells))
    for rows, block in line_blocks(cells, 64):
        values = block.values - feature_means[block.index]
        sums = segment_sum(values[:, None], block.indptr)[:, 0]
        means[rows] = sums / (block.counts + shrink).clamp(min=1e-9)
    return means
