"""What is predicted: cells, all features of rows, or the best features of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from headstart.config import Config
from headstart.errors import InputError, argument
from headstart.model.asking.recommending import require_contexts
from headstart.model.asking.scoring import By, Criterion, require_alike
from headstart.model.inputs.given import as_list, whole_number
from headstart.model.parts.fitted import Fitted
from headstart.table.names import as_name


class Question(Config):
    """What is predicted of each record. It is part of the manifest of a run."""

    features: tuple[str, ...] | None = None  # None: all of the model
    top: int | None = None  # the best features of each row; None: all of them
    by: By = "mean"
    quantile: float = 0.9
    exclude_observed: bool = True
    mixed_kinds: bool = False
    level: float = 0.9

    @classmethod
    def asked(cls, features: Any, top: object, **settings: Any) -> Question:
        """Check what a user asks for, before any model is opened."""
        if top is not None:
            top = whole_number(top, argument("top"))
        Criterion(settings["by"], settings["quantile"])
        level = settings["level"]
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
            raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
        names = None
        if features is not None:  # each of them once
            names = tuple(dict.fromkeys(as_name(each, "feature") for each in as_list(features)))
        if names == ():
            raise InputError(f"{argument('features')} gives no name; leave it out to use all")
        return cls(features=names, top=top, **settings)

    @property
    def criterion(self) -> Criterion:
        """What a ranking goes by."""
        return Criterion(self.by, self.quantile)

    def check(self, fitted: Fitted, *, pairs: bool) -> None:
        """Refuse what a model cannot answer, before any partition is begun."""
        if pairs and (self.top is not None or self.features is not None):
            name = "top" if self.top is not None else "features"
            raise InputError(
                f"{argument('pairs')} names the cells to predict, so that {argument(name)} has no meaning; "
                f"give {argument('rows')} instead, or leave out {argument(name)}"
            )
        slots = np.array(fitted.catalogue.slots(self.features or ()), dtype=np.int64)  # all must be known
        if self.top is None:
            return
        listing = fitted.catalogue.listing
        slots = listing.present if self.features is None else slots
        if self.by != "information" and not self.mixed_kinds and len(slots):
            require_alike(listing, slots, argument("top"))
        if self.exclude_observed:
            require_contexts(listing, slots)
