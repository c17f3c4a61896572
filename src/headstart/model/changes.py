"""The verbs that change the features of a fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.errors import InputError
from headstart.model.base import LOG, FittedModel
from headstart.model.changing.calls import adding_features
from headstart.model.inputs.given import require_mapping, unique_names
from headstart.model.inputs.intake import Observations, new_features
from headstart.table import Kind
from headstart.table.names import as_name


class Changes(FittedModel):
    """Adding, renaming and removing features. Each happens as a whole, or raises and changes nothing."""

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
                after = fitted.adapted(new)
                self._change(after, lambda: adding_features(fitted, after, new))
                LOG.info("added %d features", len(new))
                LOG.debug("added %s", [feature.name for feature in new])

    def remove_feature(self, name: object) -> None:
        """Remove a feature; no other prediction changes."""
        with self._writing:
            fitted = self._fitted
            known = fitted.catalogue[name].name
            self._change(fitted.without(known), lambda: {"verb": "remove_feature", "name": known})
            LOG.info("removed feature %r", name)

    def rename_feature(self, name: object, to: object) -> None:
        """Give a feature another name; no prediction changes.

        Parameters
        ----------
        name : str or int
            A feature of the model.
        to : str or int
            Its name from now on; no feature may have it yet.
        """
        other = as_name(to, "feature")
        with self._writing:
            fitted = self._fitted
            feature = fitted.catalogue[name]
            taken = other in fitted.catalogue or other in fitted.backbone_features
            if taken and other != feature.name:
                raise InputError(f"feature {other!r} is already in the model, or was in the table of its fit")
            self._change(
                fitted.renamed(feature, other),
                lambda: {"verb": "rename_feature", "name": feature.name, "to": other},
            )
            LOG.info("renamed feature %r to %r", feature.name, other)
