"""The verbs that ask a fitted model; none of them changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headstart.errors import InputError, argument, worded
from headstart.model.asking.audience import candidate_rows
from headstart.model.asking.predicting import predict_features
from headstart.model.asking.prediction import Prediction
from headstart.model.asking.suggestion import most_telling
from headstart.model.base import FittedModel
from headstart.model.inputs.frames import as_rows
from headstart.model.inputs.given import as_list, unique_names, whole_number
from headstart.model.inputs.intake import Observations, encode_rows
from headstart.table import Names
from headstart.table.names import as_name

MOST_CELLS = 50_000_000  # of one prediction; beyond, memory would be the surprise


class Answers(FittedModel):
    """Predicting and suggesting. A reader sees the model as it was when the call began."""

    def predict(
        self,
        rows: Sequence[Any] | Mapping[Any, Observations] | Any | None = None,
        features: Sequence[Any] | None = None,
    ) -> Prediction:
        """Predict rows × features.

        Parameters
        ----------
        rows : list or dict, default=None
            Names of rows; all by default. Or ``{name: {feature: value}}``, or a frame with the columns row,
            feature and value: such a row is predicted from exactly these observations, and is not kept.
        features : list, default=None
            Names of features; all by default.

        Returns
        -------
        Prediction
            Mean, standard deviation and intervals of every cell.
        """
        fitted = self._fitted
        rows = as_rows(rows, "predict()")
        if isinstance(rows, Mapping):
            names = Names(unique_names(rows, "predict()", "row"), "row")
            states = encode_rows(fitted, rows)
        elif rows is None:
            names, states = fitted.rows, fitted.states
        else:
            names = Names([as_name(row, "row") for row in as_list(rows)], "row")
            states = fitted.roster.take(fitted.rows.positions(names))
        wanted = list(fitted.catalogue) if features is None else as_list(features)
        if len(names) * len(wanted) > MOST_CELLS:
            raise InputError(
                f"{len(names)} rows × {len(wanted)} features are too many for one prediction "
                f"(at most {MOST_CELLS:,} cells); ask for fewer rows or features at a time"
            )
        return predict_features(fitted, names, states, wanted)

    def suggest(self, name: object, rows: Sequence[Any] | None = None, n: int = 10) -> list[str]:
        """Which rows to observe next: those that together say most about the feature.

        Each row is chosen given those before it, by how much it lowers the mean variance of the
        feature's predictions over all rows.

        Parameters
        ----------
        name : str or int
            A feature of the model.
        rows : list, default=None
            The rows to choose from; all by default. Rows already observed are left out.
        n : int, default=10
            How many rows to choose.

        Returns
        -------
        list of str
            The names of the rows, best first.
        """
        fitted = self._fitted
        features, heads = fitted.catalogue.take([name])
        if not fitted.adapter.gives_uncertainty:
            raise InputError(
                f"{worded('suggest()', 'headstart suggest')} needs an adapter that knows how sure it is; "
                f"fit with {argument('adapter', 'bayes')}"
            )
        whole_number(n, "suggest()")
        seen = fitted.observers(features[0])
        places = candidate_rows(fitted, None if rows is None else as_list(rows), seen)
        candidates, kind = torch.from_numpy(places), int(fitted.kinds_of(features))
        chosen = most_telling(heads, fitted.states, candidates, kind, int(n), fitted.knowledge.likelihood)
        return [fitted.rows[place] for place in chosen]
