"""Fit a model to a table, for ``Headstart.fit``.

``fit_table`` chooses which features train, weighs observations by their age, trains backbone and adapter
(``training.recipe``), fits the prior of rows given their metadata, computes the states of rows, and makes a
head for every feature. Below it are the checkpoints of a fit, and fits by several processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.base import ADAPTERS, require_linear_heads
from headstart.adapters.head_prior import activation_metric
from headstart.backbones.base import BACKBONES, Backbone
from headstart.core.devices import CPU
from headstart.core.neighbours import neighbours_of
from headstart.core.types import Knowledge, RowStates
from headstart.distributed import process_group, rows_are_sharded, run_in_each_process, run_in_main_process
from headstart.errors import (
    InputError,
    NumericalError,
    explain_memory_error,
    for_user,
    join_names,
    option_name,
)
from headstart.files import CAN_LOCK, explain_storage_error, left_over, lock_folder, read_json, write_json
from headstart.linalg.array_ops import LinAlgError
from headstart.linalg.compact import MOST_DECODED, compact, from_halves, to_halves
from headstart.linalg.packed import make_positive_definite, pack, packed_size
from headstart.linalg.row_sharded import global_sum
from headstart.model.features import Feature, FeatureStore
from headstart.model.rows import RowMetadata, RowStore, fit_row_prior
from headstart.model.state import (
    BYTES_AT_ONCE,
    Clock,
    ModelState,
    Settings,
    are_finite,
    batches,
    extreme_feature_error,
    widen_surprised,
)
from headstart.parallel import parallel_map, thread_pool
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.kinds import KindType
from headstart.table.names import sort_key
from headstart.table.times import age_weights
from headstart.training.calibration import USUAL_LEVEL
from headstart.training.judge import Judgement, train_best
from headstart.training.known_neighbours import fit_known_weights
from headstart.training.recipe import AUTO, TrainedParts, train
from headstart.training.table_inputs import feature_batch, modelled_table, table_groups

MIN_FEATURES_TO_FIT = 4  # with observations, in a table that can be fitted

CHECKPOINT_FACTS = "fit.json"

_PROGRESS_FILE = re.compile(r"[\w.-]+\.safetensors")

_CHECKPOINT_FILES = re.compile(rf"{re.escape(CHECKPOINT_FACTS)}|{_PROGRESS_FILE.pattern}")

_FIT = object()  # owns the lock of a checkpoint's folder, for the command and for the fit that it calls

_LEAST_COMPACTED = 2**20  # of all covariances that are worth compacting: 4 MiB


def fit_table(
    table: Table,
    settings: Settings,
    reporter: Reporter,
    checkpoint: Path | None,
    resume: bool,
    device: torch.device = CPU,
) -> ModelState:
    """Train backbone and adapter on a table, and make a head for every feature.

    Parameters
    ----------
    table : Table
        The observations. Under ``torchrun`` each process has a part of the rows.
    settings : Settings
        The settings of the model.
    reporter : Reporter
        Shows the progress.
    checkpoint : Path or None
        The folder for checkpoints.
    resume : bool
        Whether to continue an interrupted fit from its checkpoint.
    device : torch.device
        The device to train on. The fitted model is in main memory.
    """
    if rows_are_sharded():
        require_shardable(settings)
        require_consecutive_rows(table)
    if settings.adapter != AUTO:
        require_linear_heads(settings.chosen_adapter, "a model stores")
    train_features, meta_features = split_features(table, settings.meta_share, settings.random_state)
    run_in_each_process(table.cells)  # raises an error if a value is too large to compute with
    _require_row_prior(table, settings)
    unweighted, table = table, weight_by_age(table, settings)
    if table.schema is not None:
        reporter.say(f"metadata: {table.schema.describe()}")
    with _explain_failures(table, device), thread_pool(), ExitStack() as stack:
        if checkpoint is not None:
            stack.enter_context(lock_checkpoint(checkpoint))
            open_checkpoint(checkpoint, table, settings, resume)
        judgement = None
        if settings.adapter == AUTO:
            trained, recipe, judgement = train_best(
                table,
                train_features,
                settings,
                reporter=reporter,
                checkpoint=partial(part_file, checkpoint),
                device=device,
            )
            settings = settings.revised(binary_link=recipe.binary_link, backbone=recipe.backbone)
        else:
            trained = train(
                table,
                train_features,
                meta_features,
                settings,
                {"adapter": settings.chosen_adapter},
                reporter=reporter,
                checkpoint=partial(part_file, checkpoint),
                device=device,
            )
        return build_state(unweighted, settings, trained.to_cpu(), train_features, judgement)


def split_features(
    table: Table, meta_share: float | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the features that train the backbone and the features that meta-train the adapter.

    Features without observations are in neither part. If ``meta_share`` is None, all others are in both.
    """
    observed = np.flatnonzero(global_sum(torch.from_numpy(table.counts)))
    if len(observed) < MIN_FEATURES_TO_FIT:
        raise InputError(
            f"the table has {len(observed)} features with observations; at least {MIN_FEATURES_TO_FIT} are "
            "needed, some to train the backbone and some to learn how to add new ones"
        )
    if meta_share is None:
        return observed, observed
    order = np.random.default_rng(seed).permutation(observed)
    meta = min(max(2, round(meta_share * len(observed))), len(observed) - 2)
    return np.sort(order[meta:]), np.sort(order[:meta])


def _require_row_prior(table: Table, settings: Settings) -> None:
    """Refuse row metadata if the backbone has no prior of rows."""
    if table.row_metadata is not None and not BACKBONES.part_of(settings.backbone).reads_any_head:
        raise InputError(
            f"the backbone {settings.backbone.name!r} has no prior of rows that metadata could move; "
            "fit without row metadata, or with the factorisation"
        )


def weight_by_age(table: Table, settings: Settings) -> Table:
    """Multiply the weights of a table by weights that fall with age, if there is a half-life."""
    half_life = settings.half_life
    if half_life is None and table.weights is None:
        return table
    adapter = settings.adapter
    takes_weights = (
        adapter == AUTO if isinstance(adapter, str) else ADAPTERS.part_of(adapter).supports_weights
    )
    if not takes_weights or not BACKBONES.part_of(settings.backbone).supports_weights:
        raise InputError(
            f"{option_name('weight' if half_life is None else 'half_life')} needs parts whose observations "
            f"can count less: {option_name('backbone', 'factorisation')} with "
            f"{option_name('adapter', 'bayes')}, chn-bayes or auto"
        )
    if half_life is None:
        return table
    if table.times is None:
        raise InputError(
            f"{option_name('half_life')} needs to know when each observation was made; name the "
            f"column when the table is read, as {option_name('time', 'timestamp')}"
        )
    now = float(table.times.max(initial=-np.inf))
    return replace(table, weights=age_weights(table.times, now, half_life, table.weights))


@contextmanager
def _explain_failures(table: Table, device: torch.device) -> Iterator[None]:
    """Turn memory errors and numerical failures of the block into errors that say what to do."""
    try:
        with explain_memory_error(lambda: _too_large(table, device)):
            yield
    except LinAlgError as error:
        raise NumericalError(
            f"training broke down ({str(error).split(':')[0]}): the numbers became too large or too much "
            "alike; look for extreme values in the table, lower the learning_rate, or take another adapter"
        ) from error


def _too_large(table: Table, device: torch.device) -> str:
    rows, features = table.shape
    smaller = for_user(
        "backbone={'name': 'factorisation', 'latent': 8, 'signature': 8}",
        "--set backbone.latent=8 --set backbone.signature=8",
    )
    where, elsewhere = "", "take a machine with more memory"
    if device.type != "cpu":
        where, elsewhere = f" on {device}", f"fit on the processor with {option_name('device', 'cpu')}"
    return (
        f"there is not enough memory{where} to fit {rows} rows × {features} features with {len(table)} "
        f"observations; fit fewer rows or features, lower the size of the backbone ({smaller}), or "
        f"{elsewhere} (the page Sizing of the documentation says how much is needed)"
    )


def build_state(
    table: Table,
    settings: Settings,
    trained: TrainedParts,
    train_features: NDArray[np.int64],
    judgement: Judgement | None = None,
) -> ModelState:
    """Compute the row states and the heads of all features from trained parts.

    Parameters
    ----------
    table : Table
        The observations.
    settings : Settings
        The settings of the model.
    trained : TrainedParts
        The backbone, and the adapter under the name "adapter".
    train_features : ndarray of int
        The positions of the features that trained the backbone.
    judgement : Judgement, optional
        The comparison of candidates, if the adapter was chosen by the judge.
    """
    backbone, knowledge, trained_adapter = trained.backbone, trained.knowledge, trained.adapters["adapter"]
    adapter, backbone_features = trained_adapter.adapter, table.features.take(train_features)
    # Later observations refine the heads that the adapter makes. Otherwise the features of the backbone have
    # the heads that the backbone learned.
    fixed = not adapter.makes_known_heads
    aging = settings.half_life is not None
    features = _build_features(table, set(train_features.tolist()), fixed=fixed, aging=aging)
    row_metadata = _fit_row_metadata(table, backbone, knowledge)
    with torch.no_grad():
        states = adapter.refine_in_blocks(_row_states(knowledge, backbone, row_metadata))
        first_feature = modelled_table(table, settings.binary_link).with_features(train_features[:1])
        example_heads = adapter.adapt(feature_batch(first_feature), states)  # gives the shapes of heads
    model = ModelState(
        settings=settings.revised(
            backbone=backbone.config,
            adapter=adapter.config,
            metatraining=trained_adapter.metatraining or settings.metatraining,
        ),
        row_store=RowStore(table.rows, states),
        schema=table.schema,
        kinds=tuple(kind for kind, _ in Counter(table.kinds).most_common()),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter,
        calibration=trained_adapter.calibration,
        feature_store=FeatureStore(example_heads, backbone_features),
        backbone_features=backbone_features,
        judgement=judgement,
        local=trained_adapter.local,
        middle=table.kinds.take(train_features).middle_real(),
        encoders=dict(table.encoders),
        row_metadata=row_metadata,
        clock=_start_clock(table, train_features, settings.half_life),
        table_weights=table.with_features(train_features).weights,
        table_values=_given_numbers(table.with_features(train_features)) if fixed else None,
        words=table.words,
        not_applicable=table.not_applicable,
    )
    if fixed:
        heads = knowledge.heads.plain(states.activation.shape[1])  # with the shapes of the adapter's heads
        feature_store = model.feature_store.put([features[i] for i in train_features], heads)
        model = replace(model, feature_store=feature_store)
    _round_covariances(knowledge)
    model = _make_heads(model, [feature for feature in features if not feature.fixed])
    return _compact_covariances(_with_known_weights(model, table_groups(table.with_features(train_features))))


def _with_known_weights(model: ModelState, groups: Tensor | None) -> ModelState:
    """Return the model with the weights of known features' local parts, if the judge chose these.

    ``groups`` are the categories of the features (``table_groups``).
    """
    if model.local is None or not any(model.local.known):
        return model
    slots = model.feature_store.slots(model.backbone_features)
    weights = fit_known_weights(
        model.backbone,
        model.adapter,
        model.knowledge,
        model.feature_store.heads_at(np.array(slots)).dense(),
        torch.arange(len(slots)),
        groups,
        seed=model.settings.random_state,
    )
    stacked = neighbours_of(model.knowledge).stack(weights)
    stacked.data = stacked.data.astype(np.float32).astype(np.float64)  # the precision of saved models
    return replace(model, known_weights=stacked)


def _build_features(table: Table, in_backbone: set[int], *, fixed: bool, aging: bool) -> list[Feature]:
    """Return all features of a table with their contexts, and times if their observations are ``aging``.

    If the heads of the backbone's features are ``fixed``, these features have no contexts.
    """
    rows, single_precision = table.by_feature(table.values)
    values = single_precision.astype(np.float64)  # later values have double precision, too
    del single_precision
    values = table.kinds.numbers(values, np.repeat(np.arange(len(table.features)), table.counts))
    ends = np.cumsum(table.counts)
    times = None if table.times is None or not aging else table.by_feature(table.times)[1]
    weights = None if table.weights is None else table.by_feature(table.weights)[1]
    metadata = table.encoded_metadata()
    records = [{}] * len(table.features) if table.metadata is None else table.metadata.to_pylist()
    features = []
    for i, (name, kind) in enumerate(zip(table.features, table.kinds, strict=True)):
        count = int(table.counts[i])
        context = slice(0, 0) if fixed and i in in_backbone else slice(ends[i] - count, ends[i])
        features.append(
            Feature(
                name,
                kind,
                i in in_backbone,
                count,
                metadata[i],
                rows[context],
                values[context],
                record={key: value for key, value in records[i].items() if value is not None},
                times=None if times is None else times[context],
                weights=None if weights is None else weights[context],
            )
        )
    return features


def _given_numbers(table: Table) -> NDArray[np.float64] | None:
    """Return the numbers of a table's observations: (n,); None without reals, whose outliers are replaced."""
    if not (table.kinds.types == KindType.REAL).any():
        return None
    numbers: NDArray[np.float64] = table.kinds.numbers(table.values.astype(np.float64), table.feature_index)
    return numbers


def _fit_row_metadata(table: Table, backbone: Backbone, knowledge: Knowledge) -> RowMetadata | None:
    """Return the metadata of the table's rows with the prior of rows given it."""
    if table.row_metadata is None or table.row_schema is None or not backbone.reads_any_head:
        return None
    encoded = table.encoded_row_metadata()
    widths = tuple(column.width for column in table.row_schema.columns)
    prior = fit_row_prior(backbone, knowledge, torch.from_numpy(encoded), widths)
    return RowMetadata(table.row_schema, encoded, table.row_metadata, prior)


def _row_states(knowledge: Knowledge, backbone: Backbone, row_metadata: RowMetadata | None) -> RowStates:
    """Return the states of the table's rows, given their metadata if it is informative."""
    if row_metadata is None or row_metadata.prior is None or not backbone.reads_any_head:
        return knowledge.states
    features = torch.arange(len(knowledge.kinds))
    row_prior = row_metadata.prior_of(row_metadata.encoded)
    return backbone.states_from_heads(knowledge.cells, knowledge.heads, knowledge.kinds, features, row_prior)


def _start_clock(table: Table, train_features: NDArray[np.int64], half_life: float | None) -> Clock | None:
    """Return the clock of a model with the times of its table; None if observations do not age."""
    times = table.with_features(train_features).times
    if half_life is None or times is None or table.times is None:
        return None
    now = float(table.times.max())
    return Clock(half_life, now, now, times)


def _make_heads(model: ModelState, features: list[Feature]) -> ModelState:
    """Return the model with ``features`` and the heads that the adapter makes from their contexts."""
    if not process_group().is_single:
        return reduce(_make_sharded_heads, batches(features), model)
    start = model  # no head depends on another
    batches_with_heads = parallel_map(
        lambda batch: (batch, start.heads_for(batch)), batches(features), each_takes=BYTES_AT_ONCE
    )
    for batch, heads in batches_with_heads:
        model = model.with_heads(batch, heads)
    return model


# -- checkpoints --------------------------------------------------------------------------------------


@contextmanager
def lock_checkpoint(folder: Path) -> Iterator[None]:
    """Lock the folder of a checkpoint during the block; remove the folder at the end if it is empty."""
    if not process_group().is_main:
        yield
        return
    busy = f"{folder} is in use by another fit; wait until it ends, or name another folder"
    with lock_folder(folder, _FIT, create=True, busy=busy):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def open_checkpoint(folder: Path, table: Table, settings: Settings, resume: bool) -> None:
    """Prepare the locked folder of a checkpoint.

    If ``resume``, check that its fit had the same table and settings; otherwise clear the folder.
    """
    facts = {"table": table.fingerprint(), "settings": json.loads(settings.model_dump_json())}
    run_in_main_process(lambda: _open_checkpoint(folder, facts, resume))


def _open_checkpoint(folder: Path, facts: dict[str, Any], resume: bool) -> None:
    facts_file = folder / CHECKPOINT_FACTS
    if resume and facts_file.exists():
        if read_json(facts_file) != facts:
            raise InputError(
                f"{folder} holds the checkpoint of a fit with other data or settings; "
                "resume with the same ones, or start anew without resume"
            )
        return
    unfinished = left_over(folder, _CHECKPOINT_FILES)
    others = sorted(file.name for file in folder.iterdir() if file not in unfinished)
    if others and not facts_file.exists():
        raise InputError(
            f"{folder} is not empty ({join_names(others, 3)}) and holds no checkpoint; name another folder"
        )
    discard_checkpoint(folder)
    write_json(facts_file, facts)


def part_file(folder: Path | None, part: str) -> Path | None:
    """Return the checkpoint file of one part of a fit; None without a folder."""
    return None if folder is None else folder / f"{part}.safetensors"


def is_resumable(folder: Path) -> bool:
    """Return whether a folder holds the checkpoint of a fit that has made progress."""
    has_progress = any(_PROGRESS_FILE.fullmatch(file.name) for file in folder.iterdir())
    return (folder / CHECKPOINT_FACTS).exists() and has_progress


def discard_checkpoint(folder: Path) -> None:
    """Remove a checkpoint from its locked folder."""
    with explain_storage_error(folder):
        for file in [
            *(left_over(folder, _CHECKPOINT_FILES) if CAN_LOCK else []),
            *(file for file in folder.iterdir() if _PROGRESS_FILE.fullmatch(file.name)),
            folder / CHECKPOINT_FACTS,
        ]:
            file.unlink(missing_ok=True)


# -- several processes --------------------------------------------------------------------------------


def require_shardable(settings: Settings) -> None:
    """Refuse a backbone, adapter or setting that needs all rows in one process.

    Raises
    ------
    InputError
        If the backbone is not the factorisation, the adapter not bayes, chn-bayes or auto, or if there is a
        share of features for meta-training or a half-life.
    """
    if not BACKBONES.part_of(settings.backbone).sharded:
        raise InputError(
            f"the backbone {settings.backbone.name!r} is trained by one process; under torchrun take "
            f"{option_name('backbone', 'factorisation')}"
        )
    adapter = settings.adapter
    if not isinstance(adapter, str) and not ADAPTERS.part_of(adapter).sharded:
        raise InputError(
            f"the adapter {adapter.name!r} is trained by one process; under torchrun take "
            f"{option_name('adapter', 'bayes')}, chn-bayes or auto"
        )
    for name in ("meta_share", "half_life"):
        if getattr(settings, name) is not None:
            raise InputError(f"{option_name(name)} is not supported under torchrun; leave it out")


def require_consecutive_rows(table: Table) -> None:
    """Refuse a table if the tables of the processes are not consecutive parts of the rows.

    Raises
    ------
    InputError
        If the rows of the processes are not consecutive, or their features differ.
    """
    ends = process_group().all_gather_texts([table.rows[0], table.rows[-1]] if len(table.rows) else [])
    names = [sort_key(name) for pair in ends for name in pair]
    in_order = all(last < first for last, first in zip(names[1:-1:2], names[2::2], strict=True))
    digest = hashlib.sha256(repr(list(table.features)).encode()).hexdigest()
    digests = {text for texts in process_group().all_gather_texts([digest]) for text in texts}
    if len(digests) > 1 or not in_order:
        raise InputError(
            "processes that train together must have a part of the rows each; read the table by Table.read "
            "inside join_processes()"
        )


@torch.no_grad()
def _make_sharded_heads(model: ModelState, features: list[Feature]) -> ModelState:
    """Return the model with features and their heads, where each process has the observations of its rows."""
    adapter, batch = model.adapter, model.batch_of(features)
    shots = global_sum(batch.shots.clone())
    heads = adapter.adapt_sharded(batch, model.states, global_sum)
    for feature, finite in zip(features, are_finite(heads).tolist(), strict=True):
        if not finite:
            raise extreme_feature_error(feature)
    factors = model.calibration.factor(shots, batch.kinds)[:, USUAL_LEVEL]
    heads = widen_surprised(heads, batch, model.states, factors, model.knowledge.likelihood)
    return model.with_heads(features, heads)


def with_global_shots(model: ModelState) -> ModelState:
    """Return the model with the shots of each feature summed over all processes, to be saved.

    Heads of its features seem to be fixed, because each process has some of their observations only.
    """
    if process_group().is_single:
        return model
    features = list(model.feature_store.values())
    shots = global_sum(torch.tensor([feature.shots for feature in features], dtype=torch.int64)).tolist()
    changed = {
        feature.name: replace(feature, shots=count) for feature, count in zip(features, shots, strict=True)
    }
    return replace(model, feature_store=model.feature_store.with_contexts(changed))


@torch.no_grad()
def _round_covariances(knowledge: Knowledge) -> None:
    """Round the covariances of the backbone's heads to half precision, in place; few of them stay.

    A saved model then stores them in half precision (``saving.format``), and has the same numbers. The
    backbone shares the tensor.
    """
    covariance = knowledge.heads.covariance
    if covariance is not None and _LEAST_COMPACTED <= covariance.numel() <= MOST_DECODED:
        covariance.copy_(from_halves(*to_halves(covariance)))


@torch.no_grad()
def _compact_covariances(model: ModelState) -> ModelState:
    """Return the model with compact covariances of all heads; a small model is returned unchanged.

    Errors are measured at the average row of the model, in units of the noise of each head.
    """
    columns = model.feature_store.columns
    heads, size = model.feature_store.heads_at(slice(0, len(columns.features))), model.row_store.width + 1
    if heads.covariance is None or heads.noise is None or len(heads) * packed_size(size) < _LEAST_COMPACTED:
        return model
    shots = torch.from_numpy(columns.shots)
    prior = model.adapter.prior_covariances(shots)
    bases, shares = torch.zeros(0, size, size), torch.zeros(len(heads), 0)
    if prior is not None:
        bases, shares = (part.to(heads.covariance.dtype) for part in prior)
    metric = activation_metric(model.states)
    units = heads.noise.clamp(min=torch.finfo(heads.noise.dtype).tiny)
    matrices = compact(heads.covariance, pack(bases), shares, make_positive_definite(metric), units)
    return replace(model, feature_store=model.feature_store.with_compact_covariances(matrices))
