"""Observations that a model takes: what they change, and how well they were foreseen."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from headstart.model.changing.observing import Observed, observed
from headstart.model.changing.surprise import surprise
from headstart.model.inputs.triples import Triples
from headstart.model.parts.fitted import Fitted


class Taken(NamedTuple):
    """The model after observations, what changed in it, and what is to be said of them, if anything."""

    fitted: Fitted
    said: Observed
    surprising: str | None


def taken(fitted: Fitted, given: Triples, update: str, *, one: bool) -> Taken:
    """Take observations that were checked; ``one`` says that they were given as those of one feature."""
    before = fitted
    if fitted.clock is not None:
        fitted = replace(fitted, clock=fitted.clock.moved(given.times))
    if one and update == "features":
        (feature,) = given.features
        after = fitted.observed(feature, given.rows, given.values, given.times)
        said = Observed(len(given.rows), (feature.name,), ())
    else:
        after, said = observed(fitted, given, update)
    surprising, arrived = surprise(before, given)
    return Taken(replace(after, arrived=arrived), said, surprising)
