"""Sizes, thresholds and functions of the package that tests set or watch, by readable names.

These tables are the only place of the tests that knows where the package keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

Limits = Callable[..., None]  # the fixture ``limits``, which sets limits until the test ends

# Each limit with the constants that hold it, as "module:constant", several separated by blanks.
_PLACES = {
    "posix_locks": "files:fcntl",
    # table
    "csv_block_bytes": "table.sources:BLOCK",
    "records_per_batch": "table.sources:BATCH",
    "observations_sorted_by_comparison": "table.reading:_FEW",
    "observations_per_block": "table.cells:AT_ONCE",
    "categories_kept": "table.columns:MAX_CATEGORIES",
    "labels_kept": "table.columns:MAX_LABELS",
    "text_vectors_in_memory": "table.text_encoders:MEMORY",
    # linalg
    "block_bytes": "linalg.ragged:BUDGET",
    "dense_from_density": "linalg.ragged:DENSE_FROM",
    "padded_numbers_per_block": "linalg.ragged:_BLOCK_SIZE",
    "padding_factor": "linalg.gaussian:_MAX_PADDING",
    "ridge_strengths": "linalg.ridge:_STRENGTHS",
    "ridge_lines": "linalg.ridge:_LINES_TO_CHOOSE",
    "numbers_drawn_per_block": "linalg.row_sharded:_DRAW_SIZE",
    "bytes_sent_per_block": "distributed:_BLOCK_BYTES",
    # core, backbones, adapters
    "sweeps_before_a_new_start": "backbones.factorisation_fit:_FIRST_SWEEPS",
    "predicted_cells_per_block": "core.types:_CELLS_AT_ONCE",
    "local_numbers_per_block": "core.neighbours:_NUMBERS_AT_ONCE",
    "grid_cost": "backbones.pvae:GRID_COST",
    "signature_quantile_rows": "backbones.signature:_QUANTILE_ROWS",
    "signature_shrinkage_rows": "backbones.signature:_SHRINKAGE_ROWS",
    "baseline_numbers_per_part": "adapters.baselines:_WORK_AT_ONCE",
    "noise_observations": "adapters.head_prior:_NOISE_OBSERVATIONS",
    # training
    "judge_folds": "training.judge:_MAX_FOLDS",
    "shrinkage_features": "training.calibration:SHRINKAGE_FEATURES",
    "cross_fit_rounds": "training.cross_fitted_heads:_ROUNDS",
    "cross_fit_folds": "training.episodes:MOST_FOLDS",
    "cross_fit_numbers": "training.episodes:MOST_STATES",
    "cross_fit_observations": "training.episodes:_LEAST_OBSERVATIONS",
    "rows_of_folds_together": "training.episodes:_ROWS_TOGETHER",
    "meta_training_features": "training.judge:MIN_FEATURES_TO_META_TRAIN",
    "one_training_observations": "training.judge:MIN_OBSERVATIONS_AT_ONCE",
    "network_margin": "training.judge:_MARGIN",
    "cells_predicted_together": "training.comparison:_CELLS_AT_ONCE",
    "held_out_rows": "training.comparison:_MOST_ROWS",
    "local_harm": "training.adjustments:_LOCAL_HARM",
    "local_margin": "training.adjustments:_LOCAL_MARGIN",
    # evaluate
    "ranked_cells_per_block": "evaluate.rankings:_CELLS_AT_ONCE",
    # model
    "predicted_heads_per_block": "model.cell_predictions:_HEADS_AT_ONCE",
    "journal_changes": "model.saving.folder:_MAX_CHANGES",
    "journal_bytes": "model.saving.folder:_MAX_JOURNAL_BYTES",
    "journal_share": "model.saving.folder:_MAX_JOURNAL_SHARE",
    "compact_from_numbers": "model.fitting:_LEAST_COMPACTED",
    "coded_values": "model.saving.format:_LEAST_CODED",
    "narrowed_from_numbers": "model.saving.format:_LEAST_NARROWED",
    "compared_bytes": "model.saving.format:_LEAST_BYTES",
    "mapped_from_bytes": "model.saving.folder:_LAZY_FROM",
    "gathered_observations_per_block": "linalg.row_sharded:_BLOCK_ITEMS",
    "mapped_spare_lines": "model.saving.lazy:_ROOM",
    "name_lookups_before_dictionary": "model.saving.lazy:_MAX_LOOKUPS",
    "computed_one_by_one": "model.updates:_FEW_ROWS model.updates:_FEW_FEATURES",
    # scoring
    "scored_features_per_block": "scoring:_FEATURES_AT_ONCE",
    # service
    "header_seconds": "service.app:HEADER_SECONDS",
    "database_silence_seconds": "service.database:_SILENCE",
    "store_clean_wait_ms": "service.store:_CLEAN_WAIT_MS",
    # functions, for which a test gives another
    "find_entry_points": "registry:entry_points",
    "find_packages": "registry:packages_distributions",
    "draw_rows_held_out": "evaluate.benchmark:draw_rows",
    "train_candidate": "training.judge:train",
    "build_backbone": "training.recipe:build_backbone",
    "find_device": "core.devices:device_of scoring:device_of",
    "take_over_model": "service.live_model:LiveModel.take_over",
    "plot_panels": "evaluate.plots:plot_panels",
    "start_server": "service.app:run",
}

# Functions whose calls can be recorded.
_WATCHED = {
    "scores": "evaluate.scoring:score",
    "benchmark trainings": "evaluate.benchmark:train",
    "judge trainings": "training.judge:train",
    "errors of means": "training.judge:score_means",
}


class Call(NamedTuple):
    """The arguments and the result of a call."""

    arguments: tuple[Any, ...]
    result: Any


@contextmanager
def watch(name: str) -> Iterator[list[Call]]:
    """Record the calls of a function of the package within the ``with`` block."""
    module, function = _WATCHED[name].split(":")
    original = getattr(import_module(f"headstart.{module}"), function)
    calls: list[Call] = []

    def record(*arguments: Any, **named: Any) -> Any:
        calls.append(Call(arguments, original(*arguments, **named)))
        return calls[-1].result

    with patch(f"headstart.{module}.{function}", record):
        yield calls


@contextmanager
def limits(**values: object) -> Iterator[None]:
    """Set limits of the package, by name, within the ``with`` block."""
    with ExitStack() as patches:
        for name, value in values.items():
            for place in _PLACES[name].split():
                patches.enter_context(patch(f"headstart.{place.replace(':', '.')}", value))
        yield
