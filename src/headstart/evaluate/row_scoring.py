"""Scoring one method on held-out rows: at known features, and at new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from headstart.adapters.protocol import Adapter, StreamingAdapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.states import RowStates
from headstart.errors import InputError
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.results import Run
from headstart.evaluate.row_test import BOTH, RowTest, both_few
from headstart.evaluate.scoring import heads_of, runs_of, score_targets
from headstart.evaluate.splits import FeatureSplit
from headstart.evaluate.targets import Targets
from headstart.table import Table
from headstart.training.recipe import Trained, as_modelled
from headstart.training.stages import feature_batch


@dataclass(frozen=True)
class HeldOutRows:
    """The tests of held-out rows in one split, as a model of one binary link takes them."""

    known: FeatureBatch  # the known features with a target, with all their training observations
    rows: RowTest  # at known features
    new: KShotTest  # the new features
    both: Targets | None  # the cells of held-out rows and new features, if there are any

    @classmethod
    def of(
        cls,
        table: Table,
        away: Table,
        split: FeatureSplit,
        new: KShotTest,
        link: str,
        row_shots: tuple[int, ...],
        seed: int,
    ) -> HeldOutRows | None:
        """Make the tests; None if no held-out row has enough observations of known features.

        ``table`` has the other rows and ``away`` the held-out ones; both have all features, of the same
        kinds.
        """
        here, there = as_modelled(table, link), as_modelled(away, link)
        described = there.with_features(split.train)
        if not (np.bincount(described.row_index) > max(row_shots)).any():
            return None
        rows = RowTest(described, away.kinds.take(split.train), row_shots, seed)
        batch = feature_batch(here.with_features(split.train))
        known = replace(batch, known=torch.arange(len(batch))).take(rows.features)
        tested = there.with_features(split.meta_test)
        return cls(known, rows, new, both_few(tested, away.kinds.take(split.meta_test), rows, new))


@torch.no_grad()
def score_rows(method: str, trained: Trained, test: HeldOutRows, split: int = 0) -> list[Run]:
    """Score one method at every number of observations of a row, and where row and feature have few."""
    own, knowledge, rows = trained.adapters[method], trained.knowledge, test.rows
    adapter, calibration, likelihood = own.adapter, own.calibration, knowledge.likelihood
    trained_states = adapter.refine(knowledge.states)

    def states(shots: int) -> RowStates:
        return adapter.refine(trained.backbone.states(rows.context(shots)))

    heads = known_heads(adapter, knowledge, test.known, trained_states)
    runs = []
    for shots in rows.shots:
        predictive = rows.predict(heads, states(shots), likelihood)
        scores = score_targets(rows, predictive, test.known.shots, calibration)
        runs += runs_of(scores, split, method, None, shots)
    if test.both is not None:
        context = test.new.context(BOTH)
        new_heads = heads_of(adapter, context, trained_states)
        predictive = test.both.predict(new_heads, states(BOTH), likelihood)
        scores = score_targets(test.both, predictive, context.shots, calibration)
        runs += runs_of(scores, split, method, BOTH, BOTH)
    return runs


def known_heads(adapter: Adapter, knowledge: Knowledge, known: FeatureBatch, states: RowStates) -> Heads:
    """Return the heads that a fitted model holds of features that its backbone knows.

    An adapter that takes any number of observations makes them from all of a feature's; with any other
    adapter a model keeps the backbone's own. ``states`` are the rows' in training, refined.
    """
    if isinstance(adapter, StreamingAdapter):
        return heads_of(adapter, known, states)
    if known.known is None:
        raise InputError("the features must say which of the backbone's own they are")
    return knowledge.heads.take(known.known).plain(states.activation.shape[1])
