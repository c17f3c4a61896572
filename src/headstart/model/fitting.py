"""Fit a model to a table."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.base import ADAPTERS
from headstart.backbones.base import BACKBONES, Backbone, OpenBackbone
from headstart.backbones.factorisation import FactorisationConfig
from headstart.core.devices import CPU
from headstart.core.types import Knowledge, RowStates
from headstart.distributed import process_group
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
from headstart.model.features import Feature, FeatureStore
from headstart.model.rows import RowMetadata, RowStore
from headstart.model.state import (
    BYTES_AT_ONCE,
    Clock,
    ModelState,
    Settings,
    are_finite,
    batches,
    too_extreme,
    widen_surprised,
)
from headstart.parallel import parallel_map, thread_pool
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.names import sort_key
from headstart.table.times import weights_of
from headstart.training.calibration import USUAL_LEVEL
from headstart.training.judge import Judgement
from headstart.training.recipe import Trained, feature_batch, modelled_table, train, train_best
from headstart.training.row_prior import fit_row_prior

MIN_FEATURES = 4


def split_features(
    table: Table, meta_share: float | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw which features train the backbone and which meta-train the adapter; empty ones do neither.

    Without a share, all of them do both.
    """
    observed = np.flatnonzero(process_group().all_reduce_sum(torch.from_numpy(table.counts)))
    if len(observed) < MIN_FEATURES:
        raise InputError(
            f"the table has {len(observed)} features with observations; at least {MIN_FEATURES} are "
            "needed, some to train the backbone and some to learn how to add new ones"
        )
    if meta_share is None:
        return observed, observed
    order = np.random.default_rng(seed).permutation(observed)
    meta = min(max(2, round(meta_share * len(observed))), len(observed) - 2)
    return np.sort(order[meta:]), np.sort(order[:meta])


def features_of(table: Table, in_backbone: set[int], *, fixed: bool) -> list[Feature]:
    """All features of a table; if the backbone's own heads are ``fixed``, these without their contexts."""
    rows, found = table.by_feature(table.values)
    values = found.astype(np.float64)  # single values are computed with, so that they must not round
    del found
    ends = np.cumsum(table.counts)
    times = None if table.times is None or table.weights is None else table.by_feature(table.times)[1]
    metadata = table.encoded_metadata()
    records = [{}] * len(table.features) if table.metadata is None else table.metadata.to_pylist()
    features = []
    for i, (name, kind) in enumerate(zip(table.features, table.kinds, strict=True)):
        count = int(table.counts[i])
        held = slice(0, 0) if fixed and i in in_backbone else slice(ends[i] - count, ends[i])
        features.append(
            Feature(
                name,
                kind,
                i in in_backbone,
                count,
                metadata[i],
                rows[held],
                values[held],
                record={key: value for key, value in records[i].items() if value is not None},
                times=None if times is None else times[held],
            )
        )
    return features


MARK = "fit.json"

_PART = re.compile(r"[\w.-]+\.safetensors")

_OURS = re.compile(rf"{re.escape(MARK)}|{_PART.pattern}")

_FIT = object()  # who holds the lock: the command and the fit that it calls


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Keep all other fits out of a checkpoint's folder; it is removed at the end if it is empty."""
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


def part_file(folder: Path, part: str) -> Path:
    """The file for the progress of one part of a fit."""
    return folder / f"{part}.safetensors"


def open_checkpoint(folder: Path, table: Table, settings: Settings, resume: bool) -> None:
    """Make the folder ready, which must be locked: continue with what it holds, or start anew."""
    facts = {"table": table.fingerprint(), "settings": json.loads(settings.model_dump_json())}
    process_group().all_or_none(lambda: _open(folder, facts, resume) if process_group().is_main else None)


def _open(folder: Path, facts: dict[str, Any], resume: bool) -> None:
    mark = folder / MARK
    if resume and mark.exists():
        if read_json(mark) != facts:
            raise InputError(
                f"{folder} holds the checkpoint of a fit with other data or settings; "
                "resume with the same ones, or start anew without resume"
            )
        return
    left = left_over(folder, _OURS)
    others = sorted(each.name for each in folder.iterdir() if each not in left)
    if others and not mark.exists():
        raise InputError(
            f"{folder} is not empty ({join_names(others, 3)}) and holds no checkpoint; name another folder"
        )
    discard(folder)
    write_json(mark, facts)


def is_resumable(folder: Path) -> bool:
    """Whether a folder holds progress that a fit can continue with."""
    return (folder / MARK).exists() and any(_PART.fullmatch(each.name) for each in folder.iterdir())


def discard(folder: Path) -> None:
    """Remove the progress of a fit from its folder, which must be locked."""
    with explain_storage_error(folder):
        for each in [
            *(left_over(folder, _OURS) if CAN_LOCK else []),
            *(each for each in folder.iterdir() if _PART.fullmatch(each.name)),
            folder / MARK,
        ]:
            each.unlink(missing_ok=True)


def require_shareable(settings: Settings) -> None:
    """Refuse settings of parts that need all rows in one process.

    Raises
    ------
    InputError
        If the backbone is not the factorisation, the adapter not bayes, chn-bayes or auto, or if there is a
        share of features for meta-training or a half-life.
    """
    if not isinstance(settings.backbone, FactorisationConfig):
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


def require_part(table: Table) -> None:
    """Refuse a table of which each process has more than its own part of the rows.

    Raises
    ------
    InputError
        If the rows of the processes do not follow each other, or their features differ.
    """
    ends = process_group().all_gather_texts([table.rows[0], table.rows[-1]] if len(table.rows) else [])
    names = [sort_key(name) for pair in ends for name in pair]
    in_order = all(last < first for last, first in zip(names[1:-1:2], names[2::2], strict=True))
    digest = hashlib.sha256(repr(list(table.features)).encode()).hexdigest()
    same = len({each for digests in process_group().all_gather_texts([digest]) for each in digests}) == 1
    if not (same and in_order):
        raise InputError(
            "processes that train together must have a part of the rows each; read the table by Table.read "
            "inside working_together()"
        )


@torch.no_grad()
def with_shared_heads(fitted: ModelState, features: list[Feature]) -> ModelState:
    """``Fitted.adapted`` where each process has the observations of its own rows."""
    adapter, batch = fitted.adapter, fitted.batch_of(features)
    shots = process_group().all_reduce_sum(batch.shots.clone())
    heads = adapter.adapt_sharded(batch, fitted.states, process_group().all_reduce_sum)
    for feature, finite in zip(features, are_finite(heads), strict=True):
        if not finite:
            raise too_extreme(feature)
    factors = fitted.calibration.factor(shots, batch.kinds)[:, USUAL_LEVEL]
    heads = widen_surprised(heads, batch, fitted.states, factors, fitted.knowledge.likelihood)
    return fitted.holding(features, heads)


def with_whole_shots(fitted: ModelState) -> ModelState:
    """Return the model whose features know how many observations they have in all processes."""
    features = list(fitted.catalogue.values())
    shots = (
        process_group()
        .all_reduce_sum(torch.tensor([feature.shots for feature in features], dtype=torch.int64))
        .tolist()
    )
    whole = {
        feature.name: replace(feature, shots=count) for feature, count in zip(features, shots, strict=True)
    }
    return replace(fitted, catalogue=fitted.catalogue.with_contexts(whole))


def fit_table(
    table: Table,
    settings: Settings,
    reporter: Reporter,
    checkpoint: Path | None,
    resume: bool,
    device: torch.device = CPU,
) -> ModelState:
    """Train backbone and adapter by the recipe, and give every feature of the table a head.

    The ``device`` trains; the fitted model is in main memory.
    """
    if process_group().launched:
        require_shareable(settings)
        require_part(table)
    parts = split_features(table, settings.meta_share, settings.random_state)
    process_group().all_or_none(
        table.cells
    )  # an error if there are values that cannot be computed with, before anything is made
    part = BACKBONES.part_of(settings.backbone)
    if table.row_metadata is not None and not issubclass(part, OpenBackbone):
        raise InputError(
            f"the backbone {settings.backbone.name!r} has no prior of rows that metadata could move; "
            "fit without row metadata, or with the factorisation"
        )
    table = weight_by_age(table, settings)
    if table.schema is not None:
        reporter.say(f"metadata: {table.schema.describe()}")
    try:
        with explain_memory_error(lambda: _too_large(table, device)), thread_pool():
            if checkpoint is None:
                return _trained(table, parts, settings, reporter, lambda _: None, device)
            with working_in(checkpoint):
                open_checkpoint(checkpoint, table, settings, resume)
                return _trained(table, parts, settings, reporter, partial(part_file, checkpoint), device)
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


def _trained(
    table: Table,
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    settings: Settings,
    reporter: Reporter,
    place: Callable[[str], Path | None],
    device: torch.device,
) -> ModelState:
    train_features, meta_features = parts
    if settings.adapter == "auto":
        trained, recipe, judgement = train_best(
            table, train_features, settings, reporter=reporter, checkpoint=place, device=device
        )
        settings = settings.revised(binary_link=recipe.binary_link)
        return _assembled(table, settings, trained.home(), train_features, judgement)
    trained = train(
        table,
        train_features,
        meta_features,
        settings,
        {"adapter": settings.adapter},
        reporter=reporter,
        checkpoint=place,
        device=device,
    )
    return _assembled(table, settings, trained.home(), train_features, None)


def _assembled(
    table: Table,
    settings: Settings,
    trained: Trained,
    train_features: NDArray[np.int64],
    judgement: Judgement | None,
) -> ModelState:
    backbone, knowledge, part = trained.backbone, trained.knowledge, trained.adapters["adapter"]
    adapter, own = part.adapter, table.features.take(train_features)
    # An adapter that takes any number of observations makes every head; what it makes can be refined.
    fixed = not adapter.streaming
    features = features_of(table, set(train_features.tolist()), fixed=fixed)
    described = _row_metadata(table, backbone, knowledge)
    with torch.no_grad():
        states = adapter.refine_in_blocks(_believed(knowledge, backbone, described))
        modelled = modelled_table(table, settings.binary_link)
        sample = adapter.adapt(feature_batch(modelled.with_features(train_features[:1])), states)
    fitted = ModelState(
        settings=settings.revised(
            backbone=backbone.config,
            adapter=adapter.config,
            metatraining=part.metatraining or settings.metatraining,
        ),
        roster=RowStore(table.rows, states),
        schema=table.schema,
        kinds=tuple(kind for kind, _ in Counter(table.kinds).most_common()),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter,
        calibration=part.calibration,
        catalogue=FeatureStore(sample, own),
        backbone_features=own,
        judgement=judgement,
        middle=table.kinds.take(train_features).middle_real(),
        encoders=dict(table.encoders),
        row_metadata=described,
        clock=_clock(table, train_features, settings.half_life),
    )
    if fixed:
        heads = knowledge.heads.plain(states.activation.shape[1])  # like those that the adapter makes
        catalogue = fitted.catalogue.put([features[i] for i in train_features], heads)
        fitted = replace(fitted, catalogue=catalogue)
    every = batches([feature for feature in features if not feature.fixed])
    if not process_group().is_single:
        return reduce(with_shared_heads, every, fitted)
    without = fitted  # no head depends on another
    made = parallel_map(lambda batch: (batch, without.heads_for(batch)), every, each_takes=BYTES_AT_ONCE)
    for batch, heads in made:
        fitted = fitted.holding(batch, heads)
    return fitted


def weight_by_age(table: Table, settings: Settings) -> Table:
    """Return the table with weights of its observations by their age, if there is a half-life."""
    half_life = settings.half_life
    if half_life is None:
        return table
    adapter = settings.adapter
    weighs = isinstance(adapter, str) or ADAPTERS.part_of(adapter).weighs  # "auto" chooses among such
    if not weighs or not issubclass(BACKBONES.part_of(settings.backbone), OpenBackbone):
        raise InputError(
            f"{option_name('half_life')} needs parts whose observations can count less: "
            f"{option_name('backbone', 'factorisation')} with {option_name('adapter', 'bayes')}, "
            "chn-bayes or auto"
        )
    if table.times is None:
        raise InputError(
            f"{option_name('half_life')} needs to know when each observation was made; name the "
            "column when the "
            f"table is read, as {option_name('time', 'timestamp')}"
        )
    now = float(table.times.max(initial=-np.inf))
    return replace(table, weights=weights_of(table.times, now, half_life))


def _clock(table: Table, train_features: NDArray[np.int64], half_life: float | None) -> Clock | None:
    own = table.with_features(train_features).times
    if half_life is None or own is None or table.times is None:
        return None
    return Clock.starting(half_life, own, float(table.times.max()))


def _row_metadata(table: Table, backbone: Backbone, knowledge: Knowledge) -> RowMetadata | None:
    """The metadata of the table's rows, and what it says of them."""
    if table.row_metadata is None or table.row_schema is None or not isinstance(backbone, OpenBackbone):
        return None
    encoded = table.encoded_row_metadata()
    widths = tuple(column.width for column in table.row_schema.columns)
    prior = fit_row_prior(backbone, knowledge, torch.from_numpy(encoded), widths)
    return RowMetadata(table.row_schema, encoded, table.row_metadata, prior)


def _believed(knowledge: Knowledge, backbone: Backbone, described: RowMetadata | None) -> RowStates:
    """The states of the table's rows, given what their metadata says of them."""
    if described is None or described.prior is None or not isinstance(backbone, OpenBackbone):
        return knowledge.states
    own = torch.arange(len(knowledge.kinds))
    belief = described.belief(described.encoded)
    return backbone.states_by(knowledge.cells, knowledge.heads, knowledge.kinds, own, belief)
