"""Choosing what to train: candidates before the honest judge, then the winner on everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import adapter_config
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.calibration import Calibration, Outcome
from headstart.training.judge import MIN_FEATURES, Judged, Judgement, better, folds, joined, outcomes_of
from headstart.training.metatraining import VALIDATION_SHOTS
from headstart.training.recipe import Recipe, Trained, TrainedAdapter, as_modelled, is_all_binary, train
from headstart.training.scales import hide_scales
from headstart.training.stages import feature_batch
from headstart.training.tasks import disjoint_tasks

AUTO: Literal["auto"] = "auto"  # in place of an adapter: leaves the choice to the judge
CLOSED_FORM, TRAINED = "bayes", "chn-bayes"
MIN_FEATURES_TO_META_TRAIN = 1000  # with fewer, networks learned nothing that the closed form did not have
_MARGIN = 1.0  # standard errors by which networks must beat the closed form


def train_best(
    table: Table,
    features: NDArray[np.int64],
    recipe: Recipe,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
) -> tuple[Trained, Recipe, Judgement]:
    """Choose by the judge, then train the winner on all features; its calibration is the judge's."""
    judge = Judge(table, features, reporter, checkpoint)
    recipe, adapter, judgement, calibration = judge.choose(recipe)
    trained = train(
        table, features, features, recipe, {"adapter": adapter}, reporter=reporter, checkpoint=checkpoint
    )
    own = trained.adapters["adapter"]
    if calibration is not None:
        own = TrainedAdapter(own.adapter, calibration, own.metatraining)
    return Trained(trained.backbone, trained.knowledge, {"adapter": own}), recipe, judgement


class Judge:
    """Trains candidates without some features and compares how well they predict these.

    Whatever is held out is new to backbone, signature, prior and adapter.
    """

    def __init__(
        self,
        table: Table,
        features: NDArray[np.int64],
        reporter: Reporter,
        checkpoint: Callable[[str], Path | None],
    ) -> None:
        self.table, self.features = table, features
        self.reporter, self.checkpoint = reporter, checkpoint
        self.folds = folds(features, seed=0)
        self.all_binary = is_all_binary(table)

    def choose(self, recipe: Recipe) -> tuple[Recipe, AdapterConfig, Judgement, Calibration | None]:
        """Compare the candidates; returns recipe and adapter of the best, the judgement, a calibration.

        The closed form is compared with itself under the other link for binary features, then with the
        meta-trained adapter.
        """
        closed, many = adapter_config(CLOSED_FORM), len(self.features) >= MIN_FEATURES_TO_META_TRAIN
        if len(self.features) < MIN_FEATURES:
            nothing = Judgement(shots=(), features=0, chosen=CLOSED_FORM, candidates={})
            return recipe, closed, nothing, None
        networks = adapter_config(TRAINED)
        # Where there is no link to choose first, both share one training of the backbone.
        judged = self._judged(recipe, closed, *([networks] if many and not self.all_binary else []))
        chosen, adapter = CLOSED_FORM, closed
        if self.all_binary:
            name, numbers = f"{CLOSED_FORM}, 0 and 1 as numbers", recipe.revised(binary_link="identity")
            judged[name] = self._judged(numbers, closed)[CLOSED_FORM]
            if better(judged[name], judged[chosen], 0.0):
                chosen, recipe = name, numbers
            if many:
                judged |= self._judged(recipe, networks)
        if many and better(judged[TRAINED], judged[chosen], _MARGIN):
            chosen, adapter = TRAINED, networks
        winner = judged[chosen]
        judgement = Judgement(
            shots=tuple(winner.outcomes),
            features=sum(len(fold) for fold in self.folds),
            chosen=chosen,
            candidates={name: each.verdict() for name, each in judged.items()},
        )
        return recipe, adapter, judgement, Calibration.fit(winner.outcomes, VALIDATION_SHOTS, by_level=True)

    def _judged(self, recipe: Recipe, *adapters: AdapterConfig) -> dict[str, Judged]:
        """The outcomes of candidates on all folds, by name."""
        link = f" ({recipe.binary_link} link)" if self.all_binary else ""
        names = " and ".join(adapter.name for adapter in adapters)
        self.reporter.say(f"Judging {names}{link} on features held out")
        folds = [self._fold(recipe, adapters, number) for number in range(len(self.folds))]
        found = {}
        for adapter in adapters:
            parts = [fold[adapter.name] for fold in folds]
            shots = [k for k in VALIDATION_SHOTS if any(k in part for part in parts)]
            found[adapter.name] = Judged({k: joined([part[k] for part in parts if k in part]) for k in shots})
        return found

    def _fold(
        self, recipe: Recipe, adapters: tuple[AdapterConfig, ...], number: int
    ) -> dict[str, dict[int, Outcome]]:
        held = self.folds[number]
        rest = np.setdiff1d(self.features, held)
        table = hide_scales(self.table, rest)
        part = "-".join(["judge", *(adapter.name for adapter in adapters), recipe.binary_link, str(number)])
        trained = train(
            table,
            rest,
            rest,
            recipe,
            {adapter.name: adapter for adapter in adapters},
            reporter=self.reporter,
            checkpoint=lambda name: self.checkpoint(f"{part}-{name}"),
        )
        middle = table.kinds.take(rest).middle_real()
        held_out = as_modelled(table, recipe.binary_link).with_features(held)
        tasks = disjoint_tasks(feature_batch(held_out, middle), trained.knowledge)
        places = torch.from_numpy(held)  # a feature is identified by its position in the table
        found = {}
        for name, own in trained.adapters.items():
            outcomes = outcomes_of(
                own.adapter,
                trained.knowledge.likelihood,
                tasks,
                seed=recipe.random_state,
                all_binary=self.all_binary,
            )
            found[name] = {
                shots: replace(each, feature=places[each.feature]) for shots, each in outcomes.items()
            }
        return found
