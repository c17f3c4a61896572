"""The verbs that rank, compare and explain; none of them changes the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.core.states import RowStates
from headstart.errors import InputError, worded
from headstart.evaluate.results import Results
from headstart.model.asking.audience import audience
from headstart.model.asking.evaluating import On, evaluate
from headstart.model.asking.explaining import GUEST, explain
from headstart.model.asking.explanation import Explanation
from headstart.model.asking.ranking import Ranking
from headstart.model.asking.recommending import Asker, best_features, rankings
from headstart.model.asking.scoring import By, Criterion
from headstart.model.asking.similarity import Similar, similar
from headstart.model.base import FittedModel
from headstart.model.inputs.frames import as_mapping, as_rows, is_frame, is_observations
from headstart.model.inputs.given import as_list, unique_names, whole_number
from headstart.model.inputs.intake import encode_rows
from headstart.model.parts.fitted import Fitted
from headstart.table import Table
from headstart.table.names import as_name


class Verbs(FittedModel):
    """Recommending, finding an audience, finding what is alike, explaining and evaluating."""

    def recommend(
        self,
        rows: Any,
        n: int = 10,
        features: Sequence[Any] | None = None,
        exclude_observed: bool = True,
        by: By = "mean",
        *,
        quantile: float = 0.9,
        mixed_kinds: bool = False,
        level: float = 0.9,
    ) -> Any:
        """Rank features for a row, best first.

        Features are read block by block, so that many rows can be asked for at once.

        Parameters
        ----------
        rows : str, int, list or dict
            The name of a row, or a list of names. Or a row's observations ``{feature: value}``, or
            ``{name: {feature: value}}`` for several such rows, which are not kept.
        n : int, default=10
            How many features to name; fewer if there are not so many.
        features : list, default=None
            The features to choose from; all by default.
        exclude_observed : bool, default=True
            Whether to leave out the features that the row observed.
        by : {"mean", "upper", "information"}, default="mean"
            By the expected value; by an upper quantile of the value, which prefers what is uncertain (of a
            binary feature, by that of its probability); or by how much an observation would tell about the
            row, each feature given those before it.
        quantile : float, default=0.9
            The quantile that ``by="upper"`` takes, calibrated as intervals are.
        mixed_kinds : bool, default=False
            Whether to compare features of different kinds or units, on the models' scale: a rating from 0 at
            its low end to 1 at its high end, a real in scales from its center, a probability as it is.
            Without it they are refused. Information can always be compared.
        level : float, default=0.9
            The probability that each interval contains the value.

        Returns
        -------
        Ranking or dict of str to Ranking
            The features, best first; by the names of rows where several are given.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> len(model.recommend(table.rows[0], n=3)), len(model.audience(table.features[0], n=5))
        (3, 5)
        """
        fitted, criterion = self._fitted, Criterion(by, quantile)
        askers, states, several = _askers(fitted, rows)
        if not askers:
            raise InputError("recommend() needs a row; give its name or its observations")
        best = best_features(
            fitted,
            askers,
            states,
            whole_number(n, "recommend()"),
            None if features is None else as_list(features),
            criterion,
            exclude_observed=exclude_observed,
            mixed_kinds=mixed_kinds,
        )
        found = rankings(fitted, askers, states, best, criterion, level)
        return {ranking.of: ranking for ranking in found} if several else found[0]

    def audience(
        self,
        feature: object,
        n: int = 10,
        rows: Sequence[Any] | None = None,
        exclude_observed: bool = True,
        by: By = "mean",
        *,
        quantile: float = 0.9,
        level: float = 0.9,
    ) -> Ranking:
        """Rank rows for a feature, best first: whom to show a new film, whom to give a new question.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        n : int, default=10
            How many rows to name; fewer if there are not so many.
        rows : list, default=None
            The rows to choose from; all by default.
        exclude_observed : bool, default=True
            Whether to leave out the rows that observed the feature.
        by : {"mean", "upper", "information"}, default="mean"
            As in ``recommend``; by information the rows are those that ``suggest`` names.
        quantile, level : float, default=0.9
            As in ``recommend``.

        Returns
        -------
        Ranking
            The rows, best first.
        """
        return audience(
            self._fitted,
            feature,
            whole_number(n, "audience()"),
            None if rows is None else as_list(rows),
            Criterion(by, quantile),
            exclude_observed=exclude_observed,
            level=level,
        )

    def similar(self, feature: object, n: int = 10) -> Similar:
        """Find the features that are most alike, as their predictions go.

        Two features are alike if the rows for which one is predicted high are those for which the other is:
        the correlation of their outputs over the rows of the model. Units and kinds do not matter.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        n : int, default=10
            How many features to name; fewer if there are not so many.

        Returns
        -------
        Similar
            The features, the most alike first, with their similarities.
        """
        return similar(self._fitted, feature, whole_number(n, "similar()"))

    def explain(self, row: Any, feature: object) -> Explanation:
        """Say which observations and which metadata made a prediction, as contributions that add up.

        Parameters
        ----------
        row : str, int or dict
            The name of a row, or a row's observations ``{feature: value}``, which are not kept.
        feature : str or int
            A feature of the model.

        Returns
        -------
        Explanation
            The baseline, and what each observation of the row, each metadata column of the feature and the
            feature's own observations add to it.

        Raises
        ------
        InputError
            If the backbone or the adapter is not a closed form, or the model does not hold the row's
            observations.
        """
        return explain(self._fitted, row, feature)

    def evaluate(
        self,
        table: Any,
        shots: Sequence[int] = (0, 1, 2, 4, 8, 16, 32),
        *,
        on: On | None = None,
        random_state: int = 0,
    ) -> Results:
        """Measure this very model on observations that it has not seen; it does not change.

        Parameters
        ----------
        table : Table or frame
            Observations of rows that the model knows; other rows are left out and counted. Features that the
            model does not know are tested as new ones, with contexts of ``shots`` observations. Of features
            that it knows, the cells that it has not observed are predicted as they are.
        shots : sequence of int, default=(0, 1, 2, 4, 8, 16, 32)
            The numbers of shots of new features. Observations beyond the largest are the targets, the same
            at every number; a feature without any is left out and counted.
        on : {"features", "cells"}, default=None
            What to test; by default the features that the model does not know, if there are any.
        random_state : int, default=0
            Decides which observations are contexts.

        Returns
        -------
        Results
            Metrics by shots (``results.curves("rmse")``, ``results.to_markdown()``) and facts about what was
            tested (``results.data``). On cells there is one number of shots, the median of the features'.
        """
        if not isinstance(table, Table):
            if not is_frame(table):
                raise InputError(f"evaluate() takes a Table or a frame; got {type(table).__name__}")
            kinds = self._fitted.kinds  # what is held out must not be inferred to be of another kind
            table = Table.read(table, quiet=True, kinds=str(kinds[0]) if len(kinds) == 1 else None)
        return evaluate(self._fitted, table, shots, on, random_state, worded("evaluate()", "evaluate"))


def _askers(fitted: Fitted, rows: Any) -> tuple[list[Asker], RowStates, bool]:
    """The rows that are asked for, their states, and whether there may be several of them."""
    if not is_observations(rows):
        single = isinstance(rows, str) or np.isscalar(rows)
        names = [as_name(row, "row") for row in as_list(rows)]
        positions = fitted.rows.positions(names)
        states = fitted.roster.take(positions)
        return [Asker(name, int(at)) for name, at in zip(names, positions, strict=True)], states, not single
    rows = as_rows(rows, "recommend()") if _is_long(rows) else as_mapping(rows, "recommend()")
    several = bool(rows) and all(is_observations(each) for each in rows.values())
    given: dict[Any, Any] = dict(rows) if several else {GUEST: rows}
    own: dict[Any, Any] = {row: as_mapping(each, f"row {row!r}") for row, each in given.items()}
    names, states = unique_names(own, "recommend()", "row"), encode_rows(fitted, own)
    observed = [tuple(as_name(each, "feature") for each in observations) for observations in own.values()]
    return [Asker(name, None, each) for name, each in zip(names, observed, strict=True)], states, several


def _is_long(rows: object) -> bool:
    return "row" in getattr(rows, "columns", ()) or "row" in getattr(rows, "column_names", ())
