"""Headstart: the model a user holds."""

from __future__ import annotations

import inspect
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch

from headstart.adapters.base import AdapterConfig, adapter_config
from headstart.backbones.base import BackboneConfig, backbone_config
from headstart.core.devices import training_device
from headstart.core.types import RowStates
from headstart.distributed import process_group
from headstart.errors import (
    InputError,
    NotFittedError,
    SurpriseWarning,
    UnknownNameError,
    did_you_mean,
    for_user,
    option_name,
)
from headstart.evaluate.results import Results
from headstart.model.evaluation import On, evaluate
from headstart.model.explanation import GUEST, Explanation, explain
from headstart.model.features import KnownFeature
from headstart.model.fitting import fit_table
from headstart.model.inputs import (
    NewRows,
    ObservationsLike,
    as_list,
    as_mapping,
    as_rows,
    context_of,
    encode_rows,
    encoded_rows,
    is_frame,
    is_observations,
    new_features,
    read_triples,
    require_mapping,
    triples_of,
    unique_names,
    whole_number,
)
from headstart.model.prediction import Prediction, predict_features
from headstart.model.ranking import (
    Asker,
    By,
    Criterion,
    Ranking,
    audience,
    best_features,
    candidate_rows,
    rankings,
)
from headstart.model.saving.export import table_of
from headstart.model.saving.folder import append_changes, open_for_changes, save
from headstart.model.saving.journal import Call, Notes, add_features_call, add_rows_call, observe_call
from headstart.model.saving.loading import load
from headstart.model.similarity import Similar, similar
from headstart.model.state import ModelState, Settings, Staleness, staleness_of
from headstart.model.suggestion import suggest_rows
from headstart.model.summary import ModelInfo, info_of
from headstart.model.updates import (
    Observed,
    Update,
    add_features,
    add_rows,
    remove_feature,
    remove_row,
    require_possible,
    take_observations,
)
from headstart.progress import Reporter
from headstart.table import Kind, Names, Table
from headstart.table.names import as_name
from headstart.table.reading import Columns
from headstart.table.sources import TextFormat
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import half_life_of
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig


def _defaults(model: type) -> dict[str, Any]:
    """The parameters of the constructor with their default values."""
    parameters = list(inspect.signature(model.__init__).parameters.values())[1:]  # type: ignore[misc]
    return {parameter.name: parameter.default for parameter in parameters}


LOG = logging.getLogger("headstart")  # what a service wants to know; silent unless it listens


MOST_CELLS = 50_000_000  # of one prediction; beyond, memory would be the surprise


def _askers(fitted: ModelState, rows: Any) -> tuple[list[Asker], RowStates, bool]:
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


class Headstart:
    """Predicts the missing values of a sparse table, and takes new features at once.

    Any number of threads may use one model: a reader sees it as it was before or after a change, never in
    between, and of two changes one waits for the other.

    Parameters
    ----------
    backbone : str, BackboneConfig or dict, default="factorisation"
        The base model that describes rows: its name, or its settings.
    adapter : str, AdapterConfig or dict, default="auto"
        The method that gives new features their heads: its name, such as ``"bayes"`` or ``"knn-10"``,
        or its settings. With ``"auto"`` candidates are judged on features held out from everything, and
        the best is trained on all features; ``info`` says which.
    pretraining : PretrainingConfig or dict, default=None
        How to train a backbone that is trained by gradient. What is not set has its default.
    metatraining : MetaTrainingConfig or dict, default=None
        How to meta-train the adapter. What is not set is chosen by the adapter.
    meta_share : float, default=None
        The share of features that teaches only the adapter, as in the paper. By default every feature
        teaches the backbone and, hidden from it in turn, the adapter too.
    half_life : float, str or timedelta, default=None
        The age at which an observation counts half, for rows and features: a number in the unit of the
        table's times, or words such as ``"180 days"``, if they are dates or seconds. By default all
        observations count alike.
    random_state : int, default=0
        The same number gives the same model.
    quiet : bool, default=False
        Whether to hide progress.
    device : str, default=None
        Where ``fit`` and ``refit`` compute: ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` and so on; by default on
        the processor. It is no property of the model: what was trained is brought back to main memory, all
        else is computed by the processor, and a loaded model has None.

    Attributes
    ----------
    fitted_ : Fitted
        All that ``fit`` made; there only after ``fit`` or ``load``.

    Examples
    --------
    >>> from headstart.datasets import synthetic_ratings
    >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
    >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
    >>> model.add_feature("new film", metadata={"year": 2024}, observations={table.rows[0]: 5})
    >>> model.predict(rows=[table.rows[1]], features=["new film"]).mean.shape
    (1, 1)
    """

    _writing: threading.RLock
    fitted_: ModelState
    _notes: Notes | None = None  # while a folder is being changed by this model

    def __init__(
        self,
        backbone: str | BackboneConfig | Mapping[str, Any] = "factorisation",
        adapter: str | AdapterConfig | Mapping[str, Any] = "auto",
        pretraining: PretrainingConfig | Mapping[str, Any] | None = None,
        metatraining: MetaTrainingConfig | Mapping[str, Any] | None = None,
        meta_share: float | None = None,
        random_state: int = 0,
        quiet: bool = False,
        half_life: float | str | timedelta | None = None,
        device: str | None = None,
    ) -> None:
        self.backbone = backbone
        self.adapter = adapter
        self.pretraining = pretraining
        self.metatraining = metatraining
        self.meta_share = meta_share
        self.random_state = random_state
        self.quiet = quiet
        self.half_life = half_life
        self.device = device

    def fit(self, table: Any, *, checkpoint: str | Path | None = None, resume: bool = False) -> Headstart:
        """Train on a table.

        Parameters
        ----------
        table : Table or frame
            The observations, kinds and metadata to learn from; see ``Table.read``. A pandas, polars or
            pyarrow frame is read with its defaults: the columns row, feature and value, or the wide form.
        checkpoint : str or Path, default=None
            A folder in which training keeps its progress, so that an interrupted fit can be resumed.
        resume : bool, default=False
            Whether to continue with what ``checkpoint`` holds.

        Returns
        -------
        Headstart
            The model itself.
        """
        device = training_device(self.device)
        if not isinstance(table, Table):
            if not is_frame(table):
                raise InputError(f"fit() takes a Table (see Table.read); got {type(table).__name__}")
            table = Table.read(table, quiet=self.quiet)
        where = None if checkpoint is None else Path(checkpoint)
        reporter = Reporter(self.quiet or not process_group().is_main)
        start = time.monotonic()
        LOG.info("fitting %d rows and %d features", len(table.rows), len(table.features))
        fitted = fit_table(table, self.checked_settings(), reporter, where, resume, device)
        with self._writing:
            self.fitted_ = fitted
        LOG.info("fitted %s in %.1f s", fitted.settings.chosen_adapter.name, time.monotonic() - start)
        reporter.say(str(replace(self.info, rows=process_group().span(len(fitted.rows))[1])))
        return self

    def refit(self, *, checkpoint: str | Path | None = None, resume: bool = False) -> Headstart:
        """Fit anew on everything the model holds, with the same settings; names stay the same.

        Whoever reads the model meanwhile sees it as it was; changes wait. The parameters are those of
        ``fit``.
        """
        with self._writing:
            return self.fit(self.table(), checkpoint=checkpoint, resume=resume)

    def checked_settings(self) -> Settings:
        """All that was set, checked; an error if something cannot be."""
        return Settings(
            backbone=backbone_config(self.backbone),
            adapter=self._adapter(),
            pretraining=PretrainingConfig.of(self.pretraining),
            metatraining=MetaTrainingConfig.of(self.metatraining),
            meta_share=self.meta_share,
            random_state=self.random_state,
            half_life=half_life_of(self.half_life),
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        encoders: Mapping[str, EncoderLike] | None = None,
        *,
        verify: bool = True,
    ) -> Self:
        """Read a saved model.

        Parameters
        ----------
        path : str or Path
            The folder of the model.
        encoders : dict, default=None
            What encodes metadata columns of new features, as in ``set_encoders``.
        verify : bool, default=True
            Whether to read all of a large model once, to see that no byte of it is damaged. Without it a
            large model is opened at once, and only what is asked for is read from the disk.

        Returns
        -------
        Headstart
            A model that predicts exactly what the saved one did.

        Raises
        ------
        ModelFileError
            If the folder is missing, damaged, of a newer format, or needs a package that is not there.
        """
        model = cls._holding(load(Path(path), verify=verify))
        model.set_encoders(encoders or {})
        LOG.info("loaded %s: %d rows, %d features", path, len(model.rows), len(model._fitted.catalogue))
        return model

    def save(self, path: str | Path) -> None:
        """Write the model to a folder.

        Parameters
        ----------
        path : str or Path
            A new folder, or that of an older model, which is replaced in one step.
        """
        self._fitted  # noqa: B018 (an error before anything is made)
        save(lambda: self._fitted, Path(path), owner=self)
        if self._notes is not None:
            self._notes.forget()  # the folder that is being changed may be this one
        LOG.info("saved %s", path)

    @classmethod
    @contextmanager
    def updating(cls, path: str | Path, encoders: Mapping[str, EncoderLike] | None = None) -> Iterator[Self]:
        """Change a saved model in place: ``with Headstart.updating(path) as model: model.add_feature(…)``.

        What changed is written when the block ends without an error: to the journal of the folder, or as a
        whole model where the journal would become too long or the model was fitted anew. If several
        processes do so, one waits for the other, and no change is lost. Inside the block the model itself
        may be saved too; any other change of the same folder by this thread raises ``BusyError``, because it
        would be lost.
        ``encoders`` is as in ``set_encoders``.
        """
        with open_for_changes(Path(path)) as (before, lock):
            model = cls._holding(before.fitted)
            lock.owner = model
            model._notes = notes = Notes(before.fitted)
            try:
                model.set_encoders(encoders or {})
                yield model
            finally:
                model._notes = None  # what changes it later changes the folder no more
            with model._writing:
                calls = notes.calls(model._fitted)
                if calls is None or not append_changes(before, calls):
                    if not before.verified:
                        load(Path(path))  # damage must not get checksums that are right
                    model.save(path)
                else:
                    LOG.info("wrote %d changes to the journal of %s", len(calls), path)

    def set_encoders(self, encoders: Mapping[str, EncoderLike]) -> None:
        """Give the model what encodes the metadata of new features and is not saved with it.

        Parameters
        ----------
        encoders : dict
            For a column of the type custom, its function, as in ``Table.read``. For a text column, the
            folder of its sentence encoder, if it is not where it was when the model was fitted.

        Raises
        ------
        InputError
            If a column does not exist or takes no encoder; the model is unchanged then.
        """
        given = require_mapping(encoders, "encoders", "{'poster': function}")
        with self._writing:
            fitted = self._fitted
            if given and fitted.schema is None:
                raise InputError("the model was fitted without metadata and takes no encoders")
            if fitted.schema is not None:
                fitted.schema.check_encoders(given)
            after = replace(fitted, encoders={**fitted.encoders, **given})
            if self._notes is not None:
                self._notes.follow(fitted, after)
            self.fitted_ = after

    @property
    def info(self) -> ModelInfo:
        """What was chosen, what each metadata column contributes, and the error to expect by shots."""
        return info_of(self._fitted)

    def staleness(self) -> Staleness:
        """Whether a refit would pay, from how well the model foresaw what was observed since ``fit``.

        Each observation is judged by the model as it was just before it was taken: its negative
        log-likelihood, less what the model itself expected of it.

        Returns
        -------
        Staleness
            The mean excess with its standard error, how much arrived, and whether to refit.
        """
        fitted = self._fitted
        return staleness_of(fitted.arrived, len(fitted.knowledge.cells.index))

    @property
    def features(self) -> list[str]:
        """The names of all features the model predicts."""
        return list(self._fitted.catalogue)

    @property
    def rows(self) -> Names:
        """The names of the rows the model knows."""
        return self._fitted.rows

    def feature(self, name: object) -> KnownFeature:
        """What the model holds of one feature: its kind, shots, observations and metadata."""
        fitted = self._fitted
        return KnownFeature(fitted.catalogue[name], fitted.rows, fitted.schema)

    def table(self, *, metadata: bool = True) -> Table:
        """Everything the model holds, as a table ready for the next ``fit``.

        Parameters
        ----------
        metadata : bool, default=True
            Whether the table has the metadata of the features.

        Returns
        -------
        Table
            All rows, features and observations: those of the table it was fitted on and those since.
        """
        return table_of(self._fitted, metadata=metadata)

    def predict(
        self,
        rows: Sequence[Any] | Mapping[Any, ObservationsLike] | Any | None = None,
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
                f"{for_user('suggest()', 'headstart suggest')} needs an adapter that knows how sure it is; "
                f"fit with {option_name('adapter', 'bayes')}"
            )
        whole_number(n, "suggest()")
        seen = fitted.observers(features[0])
        places = candidate_rows(fitted, None if rows is None else as_list(rows), seen)
        candidates, kind = torch.from_numpy(places), int(fitted.kinds_of(features))
        chosen = suggest_rows(heads, fitted.states, candidates, kind, int(n), fitted.knowledge.likelihood)
        return [fitted.rows[place] for place in chosen]

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
        return evaluate(self._fitted, table, shots, on, random_state, for_user("evaluate()", "evaluate"))

    def add_feature(
        self,
        name: object,
        metadata: Mapping[str, Any] | None = None,
        observations: ObservationsLike | None = None,
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
                self._change(add_features(fitted, new), lambda: add_features_call(fitted, new))
                LOG.info("added %d features", len(new))
                LOG.debug("added %s", [feature.name for feature in new])

    def remove_feature(self, name: object) -> None:
        """Remove a feature; no other prediction changes."""
        with self._writing:
            fitted = self._fitted
            known = fitted.catalogue[name].name
            self._change(remove_feature(fitted, known), lambda: {"verb": "remove_feature", "name": known})
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
            take_observations = other in fitted.catalogue or other in fitted.backbone_features
            if take_observations and other != feature.name:
                raise InputError(f"feature {other!r} is already in the model, or was in the table of its fit")
            self._change(
                fitted.renamed(feature, other),
                lambda: {"verb": "rename_feature", "name": feature.name, "to": other},
            )
            LOG.info("renamed feature %r to %r", feature.name, other)

    def observe(
        self,
        name: object,
        observations: ObservationsLike | None = None,
        *,
        row: str | None = None,
        feature: str | None = None,
        value: str | None = None,
        time: object = None,
        update: Update | None = None,
        text: TextFormat | None = None,
    ) -> Observed:
        """Take more observations, of one feature or of any rows and features.

        ``observe(name, {row: value})`` refines one feature, and every other prediction stays as it was, bit
        for bit. ``observe([(row, feature, value), …])``, or a frame with these three columns, updates the
        rows and the features in it: first the rows, read by the heads of their features, then the features
        from the new states of their rows. An observation made before gets its new value.

        Parameters
        ----------
        name : str, int, list of (row, feature, value), frame or Path
            A feature of the model, or observations of any of its rows and features.
        observations : dict, default=None
            If ``name`` is a feature: its values by the names of rows.
        row, feature, value : str, default=None
            The columns of a frame or a file, "row", "feature" and "value" by default.
        time : str, number or date, default=None
            When the observations were made, if the model has a half-life: of a frame or file the column that
            says so, "time" by default; otherwise one time for all. A list may have (row, feature, value,
            time) instead.
        update : {"both", "features", "rows"}, default=None
            What to update. By default, one feature if ``name`` is a feature, otherwise both.
        text : TextFormat, default=None
            How a text file is written.

        Returns
        -------
        Observed
            Which features and rows were updated.

        Warns
        -----
        SurpriseWarning
            If a value lies more than 8 standard deviations from what was expected. It is taken, and
            intervals widen.
        """
        one = observations is not None or isinstance(name, (str, int))
        with self._writing:
            fitted = self._fitted
            if one:
                held = fitted.catalogue[name]
                if observations is None:
                    raise InputError(
                        f"observe({name!r}, …) needs the observations of this feature, as {{'u17': 5}}"
                    )
                side = update or "features"
                require_possible(fitted, [held], side)
                context = context_of(held.name, observations, held.kind, fitted.rows)
                given = triples_of(fitted, held, *context, time)
            else:
                side = update or "both"
                given = read_triples(fitted, name, Columns(row, feature, value), text, time)
                require_possible(fitted, given.features, side)
            after, said, surprising = take_observations(fitted, given, side)
            if surprising is not None:  # before the change: a filter may make it an error
                warnings.warn(surprising, SurpriseWarning, stacklevel=2)
            self._change(after, lambda: observe_call(fitted, after, given, side))
            if one:
                LOG.debug("observed %d values of feature %r", said.observations, held.name)
            else:
                LOG.debug("observed: %s", said)
        return said

    def add_rows(
        self,
        rows: Mapping[Any, ObservationsLike] | Any,
        metadata: Mapping[Any, Mapping[str, Any]] | None = None,
        *,
        update: Update = "rows",
    ) -> None:
        """Add new rows by name, so that they can be predicted and observed like any other.

        Parameters
        ----------
        rows : dict or frame
            ``{row: {feature: value}}``, or a frame with the columns row, feature and value; a row may have
            no observations.
        metadata : dict, default=None
            ``{row: {column: value}}`` of these rows, if the table of the fit had row metadata.
        update : {"rows", "both"}, default="rows"
            Whether the observations only describe the new rows, or also refine the features in them. With
            "rows" no other prediction changes.
        """
        given = require_mapping(as_rows(rows, "add_rows()"), "add_rows()", "{'u99': {'Alien': 5}}")
        names = unique_names(given, "add_rows()", "row")
        if update not in ("rows", "both"):
            raise InputError(f"add_rows(): update must be 'rows' or 'both'; got {update!r}")
        with self._writing:
            fitted = self._fitted
            there = [name for name in names if name in fitted.rows]
            if there:
                raise InputError(f"row {there[0]!r} is already in the model")
            records, encoded = encoded_rows(fitted.row_metadata, names, metadata)
            new = NewRows(names, given, records, encoded, teach=update == "both")
            self._change(add_rows(fitted, new), lambda: add_rows_call(fitted, new))
            LOG.info("added %d rows", len(names))

    def remove_row(self, name: object) -> None:
        """Remove a row, and its observations from every feature.

        The features that it observed get the heads that they would have without it. What training itself
        learned from the row stays in the backbone until the next ``fit``.

        Parameters
        ----------
        name : str or int
            A row of the model.
        """
        with self._writing:
            fitted = self._fitted
            place = fitted.rows.position(name)
            self._change(
                remove_row(fitted, place), lambda: {"verb": "remove_row", "name": fitted.rows[place]}
            )
            LOG.info("removed row %r", name)

    def rename_row(self, name: object, to: object) -> None:
        """Give a row another name; no prediction changes.

        Parameters
        ----------
        name : str or int
            A row of the model.
        to : str or int
            Its name from now on; no row may have it yet.
        """
        other = as_name(to, "row")
        with self._writing:
            fitted = self._fitted
            place = fitted.rows.position(name)
            if other in fitted.rows and fitted.rows.position(other) != place:
                raise InputError(f"row {other!r} is already in the model")
            self._change(
                fitted.with_roster(fitted.roster.renamed(place, other)),
                lambda: {"verb": "rename_row", "name": fitted.rows[place], "to": other},
            )
            LOG.info("renamed row %r to %r", name, other)

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (scikit-learn passes it)
        """Return the constructor's parameters by name.

        Parameters
        ----------
        deep : bool
            Has no effect, because no parameter is itself an estimator.
        """
        return {name: getattr(self, name) for name in _defaults(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Set some of the constructor's parameters and return the model itself."""
        names = _defaults(type(self))
        for name in params:
            if name not in names:
                hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
                raise UnknownNameError(f"{type(self).__name__} has no parameter {name!r}{hint}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _defaults(type(self))
        changed = [f"{name}={v!r}" for name, v in self.get_params().items() if v != defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Give every model its lock, however it is made; a constructor may be another one."""
        model = super().__new__(cls)
        model._writing = threading.RLock()
        return model

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which can be neither copied nor pickled, and what is noted for a folder."""
        return {name: value for name, value in vars(self).items() if name not in ("_writing", "_notes")}

    @property
    def _fitted(self) -> ModelState:
        try:
            return self.fitted_
        except AttributeError:
            raise NotFittedError(
                "this model is not fitted yet; call fit(table) or Headstart.load(path)"
            ) from None

    def _change(self, after: ModelState, call: Callable[[], Call]) -> None:
        """Take another state, and note the call that led to it if anyone wants to know."""
        if self._notes is not None:
            self._notes.note(self.fitted_, after, call())
        self.fitted_ = after

    def _adapter(self) -> AdapterConfig | Literal["auto"]:
        if isinstance(self.adapter, str) and self.adapter == "auto":
            return "auto"
        return adapter_config(self.adapter, seed=self.random_state)

    @classmethod
    def _holding(cls, fitted: ModelState) -> Self:
        settings = fitted.settings
        model = cls(
            settings.backbone,
            settings.adapter,
            settings.pretraining,
            settings.metatraining,
            settings.meta_share,
            settings.random_state,
            half_life=settings.half_life,
        )
        model.fitted_ = fitted
        return model
