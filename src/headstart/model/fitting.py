"""From a table to a fitted model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.protocol import StreamingAdapter
from headstart.adapters.registry import ADAPTERS
from headstart.algebra.symmetric import LinAlgError
from headstart.backbones.protocol import Backbone, OpenBackbone
from headstart.backbones.registry import BACKBONES
from headstart.core.devices import CPU
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.crew import crew
from headstart.errors import InputError, NumericalError, argument, naming_memory, worded
from headstart.model.checkpoint import open_checkpoint, part_file, working_in
from headstart.model.parting import features_of, part_features
from headstart.model.parts.batching import BYTES_AT_ONCE, batches
from headstart.model.parts.catalogue import Catalogue
from headstart.model.parts.clock import Clock
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import Roster
from headstart.model.parts.row_metadata import RowMetadata
from headstart.model.parts.settings import Settings
from headstart.model.parts.shared_heads import with_shared_heads
from headstart.model.sharing import require_part, require_shareable
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.times import weights_of
from headstart.training.choosing import train_best
from headstart.training.judge import Judgement
from headstart.training.recipe import Trained, as_modelled, train
from headstart.training.row_prior import fit_row_prior
from headstart.training.stages import feature_batch
from headstart.workers import in_parallel, workers


def fit_table(
    table: Table,
    settings: Settings,
    reporter: Reporter,
    checkpoint: Path | None,
    resume: bool,
    device: torch.device = CPU,
) -> Fitted:
    """Train backbone and adapter by the recipe, and give every feature of the table a head.

    The ``device`` trains; the fitted model is in main memory.
    """
    if crew().launched:
        require_shareable(settings)
        require_part(table)
    parts = part_features(table, settings.meta_share, settings.random_state)
    crew().agreed(
        table.cells
    )  # an error if there are values that cannot be computed with, before anything is made
    part = BACKBONES.part_of(settings.backbone)
    if table.row_metadata is not None and not issubclass(part, OpenBackbone):
        raise InputError(
            f"the backbone {settings.backbone.name!r} has no prior of rows that metadata could move; "
            "fit without row metadata, or with the factorisation"
        )
    table = aged(table, settings)
    if table.schema is not None:
        reporter.say(f"metadata: {table.schema.describe()}")
    try:
        with naming_memory(lambda: _too_large(table, device)), workers():
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
    smaller = worded(
        "backbone={'name': 'factorisation', 'latent': 8, 'signature': 8}",
        "--set backbone.latent=8 --set backbone.signature=8",
    )
    where, elsewhere = "", "take a machine with more memory"
    if device.type != "cpu":
        where, elsewhere = f" on {device}", f"fit on the processor with {argument('device', 'cpu')}"
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
) -> Fitted:
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
) -> Fitted:
    backbone, knowledge, part = trained.backbone, trained.knowledge, trained.adapters["adapter"]
    adapter, own = part.adapter, table.features.take(train_features)
    # An adapter that takes any number of observations makes every head; what it makes can be refined.
    fixed = not isinstance(adapter, StreamingAdapter)
    features = features_of(table, set(train_features.tolist()), fixed=fixed)
    described = _row_metadata(table, backbone, knowledge)
    with torch.no_grad():
        states = adapter.refine_in_blocks(_believed(knowledge, backbone, described))
        modelled = as_modelled(table, settings.binary_link)
        sample = adapter.adapt(feature_batch(modelled.with_features(train_features[:1])), states)
    fitted = Fitted(
        settings=settings.revised(
            backbone=backbone.config,
            adapter=adapter.config,
            metatraining=part.metatraining or settings.metatraining,
        ),
        roster=Roster(table.rows, states),
        schema=table.schema,
        kinds=tuple(kind for kind, _ in Counter(table.kinds).most_common()),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter,
        calibration=part.calibration,
        catalogue=Catalogue(sample, own),
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
    if not crew().alone:
        return reduce(with_shared_heads, every, fitted)
    without = fitted  # no head depends on another
    made = in_parallel(lambda batch: (batch, without.heads_for(batch)), every, each_takes=BYTES_AT_ONCE)
    for batch, heads in made:
        fitted = fitted.holding(batch, heads)
    return fitted


def aged(table: Table, settings: Settings) -> Table:
    """Return the table with weights of its observations by their age, if there is a half-life."""
    half_life = settings.half_life
    if half_life is None:
        return table
    adapter = settings.adapter if isinstance(settings.adapter, str) else ADAPTERS.part_of(settings.adapter)
    closed = adapter == "auto" or (isinstance(adapter, type) and issubclass(adapter, StreamingAdapter))
    if not closed or not issubclass(BACKBONES.part_of(settings.backbone), OpenBackbone):
        raise InputError(
            f"{argument('half_life')} needs parts whose observations can count less: "
            f"{argument('backbone', 'factorisation')} with {argument('adapter', 'bayes')}, chn-bayes or auto"
        )
    if table.times is None:
        raise InputError(
            f"{argument('half_life')} needs to know when each observation was made; name the column when the "
            f"table is read, as {argument('time', 'timestamp')}"
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
