"""Choosing what to train: candidates before the honest judge, then the winner on everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.chn_bayes import BLEND
from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import adapter_config
from headstart.core.devices import CPU, computing_on, moved
from headstart.core.shots import VALIDATION_SHOTS
from headstart.crew import crew
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.kinds import KindType
from headstart.training.calibration import Calibration, Outcome
from headstart.training.judge import MIN_FEATURES, Judged, Judgement, better, folds, joined, outcomes_of
from headstart.training.recipe import (
    Prepared,
    Recipe,
    Trained,
    TrainedAdapter,
    as_modelled,
    is_all_binary,
    prepare,
    train,
)
from headstart.training.scales import hide_scales
from headstart.training.stages import feature_batch
from headstart.training.tasks import disjoint_tasks

AUTO: Literal["auto"] = "auto"  # in place of an adapter: leaves the choice to the judge
CLOSED_FORM, TRAINED = "bayes", "chn-bayes"
MIN_FEATURES_TO_META_TRAIN = 1000  # with fewer, networks learned nothing that the closed form did not have
MIN_OBSERVATIONS_AT_ONCE = 500_000  # from which a second training, without features to judge on, costs much
_MARGIN = 1.0  # standard errors by which networks must beat the closed form


def train_best(
    table: Table,
    features: NDArray[np.int64],
    recipe: Recipe,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> tuple[Trained, Recipe, Judgement]:
    """Train what suits a table best on all its features; also says what that was and how it was chosen.

    With few features it is the closed form. With many, networks are trained beside it and blended with it.
    Of large tables one training does both, and features held back from the networks measure them. A new
    real feature has to find its scale first, as only features do that the judge holds out of everything.
    """
    judge = Judge(table, features, reporter, checkpoint, device)
    many = len(features) >= MIN_FEATURES_TO_META_TRAIN
    large = crew().count(len(table)) >= MIN_OBSERVATIONS_AT_ONCE
    at_once = many and large and not bool((table.kinds.types[features] == KindType.REAL).any())
    if at_once:
        recipe = judge.choose(recipe).recipe if judge.all_binary else recipe
        choice = None
    else:
        choice = judge.choose(recipe, networks=many)
        recipe = choice.recipe
    prepared = prepare(
        table,
        features,
        features,
        recipe,
        new_heads=True,
        reporter=reporter,
        checkpoint=checkpoint,
        device=device,
    )
    if choice is None:
        own, judgement = _chosen_at_once(prepared)
    else:
        own, judgement = prepared.train(choice.adapter, "adapter", {}), choice.judgement
        if choice.calibration is not None:
            own = replace(own, calibration=choice.calibration)
    return Trained(prepared.backbone, prepared.knowledge, {"adapter": own}), recipe, judgement


def _chosen_at_once(prepared: Prepared) -> tuple[TrainedAdapter, Judgement]:
    """Networks blended with the closed form, or the closed form alone if they add nothing to it."""
    own = prepared.train(_networks(), "adapter", {})
    judged, chosen = own.judged, TRAINED
    if not better(judged[TRAINED], judged[CLOSED_FORM], _MARGIN):
        chosen, own = CLOSED_FORM, prepared.train(adapter_config(CLOSED_FORM), "closed form", {})
        judged = {**judged, **own.judged}
    return own, judgement_of(judged, chosen, len(prepared.validation))


def _networks() -> AdapterConfig:
    return adapter_config(BLEND)


def judgement_of(judged: Mapping[str, Judged], chosen: str, features: int) -> Judgement:
    """What was compared on so many features, and what was chosen."""
    verdicts = {name: each.verdict() for name, each in judged.items()}
    shots = tuple(judged[chosen].outcomes)
    return Judgement(shots=shots, features=features, chosen=chosen, candidates=verdicts)


@dataclass(frozen=True)
class Choice:
    """What the judge chose."""

    recipe: Recipe
    adapter: AdapterConfig
    judgement: Judgement
    calibration: Calibration | None = None


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
        device: torch.device = CPU,
    ) -> None:
        self.table, self.features, self.device = table, features, device
        self.reporter, self.checkpoint = reporter, checkpoint
        self.folds = folds(features, seed=0)
        self.all_binary = is_all_binary(table)

    def choose(self, recipe: Recipe, *, networks: bool = False) -> Choice:
        """Compare the closed form with networks, or under both links if all features are binary."""
        closed, chosen = adapter_config(CLOSED_FORM), CLOSED_FORM
        if len(self.features) < MIN_FEATURES:
            nothing = Judgement(shots=(), features=0, chosen=CLOSED_FORM, candidates={})
            return Choice(recipe, closed, nothing)
        judged = self._judged(recipe, closed, *([_networks()] if networks else []))
        adapter = closed
        if self.all_binary:
            name, numbers = f"{CLOSED_FORM}, 0 and 1 as numbers", recipe.revised(binary_link="identity")
            judged[name] = self._judged(numbers, closed)[CLOSED_FORM]
            if better(judged[name], judged[chosen], 0.0):
                chosen, recipe = name, numbers
        if networks and better(judged[TRAINED], judged[chosen], _MARGIN):
            chosen, adapter = TRAINED, _networks()
        judgement = judgement_of(judged, chosen, sum(len(fold) for fold in self.folds))
        outcomes = judged[chosen].outcomes
        calibration = Calibration.fit(outcomes, VALIDATION_SHOTS, by_level=True)
        return Choice(recipe, adapter, judgement, calibration)

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
            device=self.device,
        )
        middle = table.kinds.take(rest).middle_real()
        held_out = as_modelled(table, recipe.binary_link).with_features(held)
        batch = moved(feature_batch(held_out, middle), self.device)
        with computing_on(self.device):
            tasks = disjoint_tasks(batch, trained.knowledge)
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
