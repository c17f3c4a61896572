"""The verbs that change a fitted model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from headstart.errors import InputError, SurpriseWarning, argument
from headstart.model.base import LOG, FittedModel
from headstart.model.intake import (
    Observations,
    context_of,
    encode_rows,
    new_features,
    require_mapping,
    unique_names,
)
from headstart.model.surprise import surprise
from headstart.table import Kind
from headstart.table.names import as_name


class Changes(FittedModel):
    """Adding, observing and removing. Each either happens as a whole or raises and changes nothing."""

    def add_feature(
        self,
        name: object,
        metadata: Mapping[str, Any] | None = None,
        observations: Observations | None = None,
        kind: str | Kind | None = None,
    ) -> None:
        """Make a new feature predictable; nothing else changes.

        Parameters
        ----------
        name : str or int
            The name of the feature; it must not be in the model yet.
        metadata : dict, default=None
            What is known of the feature, by metadata column. Missing columns are normal.
        observations : dict, default=None
            The feature's first values, by the names of rows that the model knows.
        kind : str or Kind, default=None
            The kind of the feature, such as ``"rating:1:5"``; by default the most usual one.

        Raises
        ------
        InputError
            If anything given cannot be used; the model is unchanged then.
        """
        key = as_name(name, "feature")
        self.add_features({key: {"metadata": metadata, "observations": observations, "kind": kind}})

    def add_features(self, features: Mapping[Any, Mapping[str, Any]]) -> None:
        """Add many features at once.

        Parameters
        ----------
        features : dict
            ``{name: {"metadata": …, "observations": …, "kind": …}}``, each part as in ``add_feature`` and
            optional.
        """
        given = require_mapping(features, "add_features()", "{'Dune 3': {'observations': …}}")
        unique_names(given, "add_features()", "feature")
        with self._writing:
            fitted = self._fitted
            if new := new_features(fitted, given):
                self.fitted_ = fitted.adapted(new)
                LOG.info("added %d features", len(new))
                LOG.debug("added %s", [feature.name for feature in new])

    def observe(self, name: object, observations: Observations) -> None:
        """Refine a feature by more observations; every other prediction stays as it was.

        Parameters
        ----------
        name : str or int
            A feature of the model.
        observations : dict
            Values by the names of rows. A row that was observed before gets its new value.

        Warns
        -----
        SurpriseWarning
            If a value lies more than 8 standard deviations from what was expected. It is taken, and
            intervals widen.
        """
        with self._writing:
            fitted = self._fitted
            feature = fitted.catalogue[name]
            if feature.fixed:
                raise InputError(
                    f"feature {feature.name!r} was trained into the backbone, whose heads are fixed with "
                    f"this adapter; fit with {argument('adapter', 'bayes')} to observe any feature further"
                )
            rows, values = context_of(feature.name, observations, feature.kind, fitted.rows)
            after = fitted.observed(feature, rows, values)
            surprising = surprise(fitted, feature, rows, values)
            if surprising is not None:  # before the change: a filter may make it an error
                warnings.warn(surprising, SurpriseWarning, stacklevel=2)
            self.fitted_ = after
            LOG.debug("observed %d values of feature %r", len(values), feature.name)

    def remove_feature(self, name: object) -> None:
        """Remove a feature; no other prediction changes."""
        with self._writing:
            self.fitted_ = self._fitted.without(name)
            LOG.info("removed feature %r", name)

    def add_rows(self, rows: Mapping[Any, Observations]) -> None:
        """Add new rows by name, so that they can be predicted and observed like any other.

        Parameters
        ----------
        rows : dict
            ``{row: {feature: value}}``; a row may have no observations.
        """
        given = require_mapping(rows, "add_rows()", "{'u99': {'Alien': 5}}")
        names = unique_names(given, "add_rows()", "row")
        with self._writing:
            fitted = self._fitted
            there = [name for name in names if name in fitted.rows]
            if there:
                raise InputError(f"row {there[0]!r} is already in the model")
            self.fitted_ = fitted.with_rows(names, encode_rows(fitted, given))
            LOG.info("added %d rows", len(names))
