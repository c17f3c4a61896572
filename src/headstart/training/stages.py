"""The two stages of training, from a table to something that adapts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import ADAPTERS, build_adapter, new_adapter
from headstart.backbones.protocol import Backbone, BackboneConfig
from headstart.backbones.registry import build_backbone, value_grid
from headstart.core.batch import FeatureBatch
from headstart.core.description import Description
from headstart.core.devices import CPU, computing_on, moved
from headstart.core.knowledge import Knowledge, Scales
from headstart.crew import crew
from headstart.progress import Reporter
from headstart.table import Kind, Kinds, Table
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, extents, tame_outliers
from headstart.table.regrouping import shared_extents, tamed
from headstart.training.metatraining import MetaTrainingConfig, meta_train
from headstart.training.pretraining import PretrainingConfig, pretrain
from headstart.training.tasks import Tasks


def train_backbone(
    table: Table,
    backbone: BackboneConfig,
    pretraining: PretrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
    device: torch.device = CPU,
) -> tuple[Backbone, Knowledge]:
    """Train a backbone on all features of ``table`` and compute once what it knows of every row.

    Both are returned on the ``device`` that computed them.
    """
    cells = tamed_cells(table)
    with seeded(seed):
        model = build_backbone(backbone, torch.from_numpy(table.kinds.types), value_grid(cells)).to(device)
    description = Description.of(torch.from_numpy(table.encoded_metadata()), metadata_widths(table))
    cells, description = moved(cells, device), moved(description, device)
    with computing_on(device):
        pretrain(model, cells, description, pretraining, seed=seed, reporter=reporter, checkpoint=checkpoint)
    _made_equal(model)
    return model, knowledge_of(model, table, cells)


def knowledge_of(backbone: Backbone, table: Table, cells: Cells | None = None) -> Knowledge:
    """What adapters may know once the backbone is frozen; ``cells`` are the table's own, if at hand."""
    device = backbone.kinds.device
    cells = moved(tamed_cells(table), device) if cells is None else cells
    metadata = torch.from_numpy(table.encoded_metadata()).to(device)
    with computing_on(device):
        heads, states = backbone.heads.detach(), backbone.states(cells)
    return Knowledge(
        states,
        cells,
        heads,
        metadata,
        backbone.kinds,
        backbone.likelihood,
        metadata_widths(table),
        moved(scales_of(table.kinds), device),
    )


def tamed_cells(table: Table) -> Cells:
    """A table's observations, without outliers of real features."""
    real = torch.from_numpy(table.kinds.types == KindType.REAL)
    cells = table.cells()
    if not bool(real.any()):
        return cells
    least = torch.full((cells.width,), LEAST_DEVIATION)
    if not crew().alone:
        return replace(
            cells, values=tamed(cells.index, cells.values, real, shared_extents(cells, real), least)
        )
    by_feature = cells.transpose()
    return tame_outliers(by_feature, real, extents(by_feature, real), least).transpose()


def metadata_widths(table: Table) -> tuple[int, ...]:
    """How many columns of the encoded metadata each metadata column has."""
    return tuple(column.width for column in table.schema.columns) if table.schema else ()


def scales_of(kinds: Kinds) -> Scales | None:
    """Centres and scales of real features, in units of the usual one; None where they do not differ."""
    middle, real = kinds.middle_real(), kinds.types == KindType.REAL
    if middle is None:
        return None
    centre, scale = (kinds.offsets[real] - middle.offset) / middle.span, kinds.spans[real] / middle.span
    return Scales(torch.from_numpy(centre), torch.from_numpy(scale))


def feature_batch(table: Table, middle: Kind | None = None) -> FeatureBatch:
    """All features of a table, treated as new.

    ``middle`` is the real kind of features whose own center and scale are yet to be found.
    """
    units = None
    if middle is not None:
        lengths = torch.tensor([float(kind == middle) for kind in table.kinds], dtype=torch.float64)
        units = torch.stack([torch.zeros_like(lengths), lengths], dim=1)
    return FeatureBatch(
        table.cells().transpose(),
        torch.from_numpy(table.encoded_metadata()),
        torch.from_numpy(table.kinds.types),
        units,
    )


def train_adapter(
    config: AdapterConfig,
    knowledge: Knowledge,
    teaching: Tasks,
    validation: Tasks,
    metatraining: MetaTrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
    memory: dict[str, Adapter] | None = None,
) -> tuple[Adapter, MetaTrainingConfig | None]:
    """Build an adapter and, if it learns, meta-train it; also returns the settings that really ran.

    ``memory`` holds what was meta-trained before, so that adapters which differ only in how they
    fine-tune afterwards (``maml-0`` and ``maml-10``, ``chn`` and ``chn-train-5``) share one training.
    """
    memory = {} if memory is None else memory
    shared = ADAPTERS.part_of(config).trained_as(config)
    key = shared.model_dump_json()
    if key not in memory:
        with seeded(seed):
            memory[key] = build_adapter(shared, knowledge)
        if memory[key].learns:
            with computing_on(knowledge.device):
                meta_train(memory[key], knowledge, teaching, validation, metatraining.filled(memory[key]),
                           seed=seed, reporter=reporter, checkpoint=checkpoint)  # fmt: skip
                memory[key].finish()
    adapter = trained = memory[key]
    settings = metatraining.filled(trained) if any(True for _ in trained.parameters()) else None
    if shared != config:
        adapter = build_adapter(config, knowledge)
        adapter.take_training(trained)
    _made_equal(adapter)
    return adapter.eval().requires_grad_(False), settings


def brought_home(adapter: Adapter, knowledge: Knowledge) -> Adapter:
    """The same adapter over the same knowledge in main memory, as a saved one is loaded.

    It is made anew: an adapter may keep what it computed on another device.
    """
    with seeded(0):
        own = new_adapter(adapter.config, knowledge)
    own.load_state_dict(adapter.state_dict())
    return own.eval().requires_grad_(False)


def _made_equal(part: nn.Module) -> None:
    """Let all processes have one and the same part: machines that are unlike may round otherwise."""
    crew().made_equal(*(each for each in part.state_dict().values() if each.is_floating_point()))


class seeded:
    """Run a block that draws initial weights from a seed of its own, leaving the global one as it was."""

    def __init__(self, seed: int) -> None:
        self._fork = torch.random.fork_rng(devices=[])
        self._seed = seed

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *details: object) -> None:
        self._fork.__exit__(*details)  # type: ignore[arg-type]
