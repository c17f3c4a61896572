"""The public class ``Headstart``: fit, predict, rank, explain, observe, add, remove, save and load.

Each method checks its arguments (``inputs``), calls a function of the module for its task, and replaces the
immutable state of the model (``state``) if it changes the model.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from headstart.adapters.base import AdapterConfig, adapter_config
from headstart.backbones.base import BackboneConfig, backbone_config
from headstart.core.devices import training_device
from headstart.display import count, facts_html
from headstart.distributed import process_group
from headstart.errors import (
    MetadataWarning,
    NotFittedError,
    SurpriseWarning,
    UnknownNameError,
    did_you_mean,
    guard_methods,
)
from headstart.evaluate.results import Results
from headstart.model.card import ModelCard, describe_on_card
from headstart.model.cell_predictions import leave_out, predict_features, require_few_cells
from headstart.model.evaluation import On, choose_ranking, evaluate, held_out_table
from headstart.model.explanation import Explanation, explain
from headstart.model.fitting import fit_table
from headstart.model.imputation import Imputations, draw_cells, fill_cells, require_missing_cells
from headstart.model.inputs import (
    ObservationsLike,
    ReadOptions,
    Unknown,
    as_list,
    as_table,
    check_new_features,
    check_new_rows,
    check_unknown,
    describe_unusual,
    optional_list,
    require_mapping,
    rows_with_states,
    seed_number,
    unique_names,
    whole_number,
)
from headstart.model.levels import columns_of, expand_new_features, renamed_columns, require_whole
from headstart.model.prediction import Prediction
from headstart.model.ranking import (
    Ranking,
    Selection,
    one_target_row,
    rank_features,
    rank_rows,
    suggest_rows,
    target_rows,
)
from headstart.model.saving.export import export_table
from headstart.model.saving.folder import append_changes, check_place, open_for_changes, save
from headstart.model.saving.journal import Call, CallLog, add_features_call, add_rows_call, observe_call
from headstart.model.saving.loading import load
from headstart.model.scores import By, Criterion, default_criterion
from headstart.model.similarity import Similar, similar
from headstart.model.staleness import Staleness, staleness_of
from headstart.model.state import ModelState, Settings
from headstart.model.summary import (
    KnownFeature,
    KnownRow,
    ModelInfo,
    count_by_row,
    describe_model,
    known_feature,
    known_row,
)
from headstart.model.titles import feature_with_title, row_titles, search_features, search_rows
from headstart.model.triples import (
    Triples,
    drop_unknown,
    feature_triples,
    find_unknown,
    open_entries,
    read_triples,
    row_triples,
)
from headstart.model.updates import (
    Observed,
    Update,
    add_features,
    add_rows,
    observe_triples,
    remove_feature,
    remove_row,
    require_supported,
)
from headstart.progress import Reporter
from headstart.table import Kind, Names, Table
from headstart.table.metadata import MetadataSchema
from headstart.table.missing_values import MissingCodes, MissingLike
from headstart.table.names import as_name
from headstart.table.reading import Columns
from headstart.table.sources import TextFormat
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import half_life_of
from headstart.table.words import Words
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig

LOG = logging.getLogger("headstart")  # silent unless the application listens


@guard_methods
class Headstart:
    """Predict the missing values of a sparse table, and add new features without training.

    A table has rows, such as users, and features, such as films. ``fit`` trains the model. Afterwards new
    features and rows can be added, each with few observations or none, and predicted at once.

    The model is safe for threads: a prediction sees the model before or after a change, never in between, and
    changes wait for each other.

    Parameters
    ----------
    backbone : str, BackboneConfig or dict, default="factorisation"
        The base model that computes the states of rows: its name or its settings.
    adapter : str, AdapterConfig or dict, default="auto"
        The method that computes the heads of new features: its name, such as ``"bayes"`` or ``"knn-10"``,
        or its settings. ``"auto"`` compares candidates on features held out from the whole training, and
        trains the best one on all features. ``info`` names the choice.
    pretraining : PretrainingConfig or dict, default=None
        The settings of gradient descent, for a backbone that is trained by it.
    metatraining : MetaTrainingConfig or dict, default=None
        The settings of the meta-training of the adapter. Omitted settings have the adapter's defaults.
    meta_share : float, default=None
        The share of features that train only the adapter, as in the paper. By default every feature trains
        the backbone, and also the adapter, with row states that do not depend on the feature.
    random_state : int, default=0
        The seed of all random choices. The same seed and table give the same model.
    quiet : bool, default=False
        Whether to hide progress.
    half_life : float, str or timedelta, default=None
        The age at which the weight of an observation is one half: a number in the unit of the table's times,
        or a text such as ``"180 days"`` if the times are dates or seconds. By default all observations have
        the same weight.
    device : str, default=None
        The device for ``fit`` and ``refit``: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` and so on; the CPU by
        default. All other methods use the CPU. The device is not saved with the model.

    Attributes
    ----------
    fitted_ : ModelState
        The fitted state, which exists only after ``fit`` or ``load``.

    Examples
    --------
    >>> from headstart import Headstart
    >>> from headstart.datasets import synthetic_ratings
    >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
    >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
    >>> model.add_feature("Dune 3", metadata={"year": 2026}, observations={"row 0": 5, "row 1": 4})
    >>> prediction = model.predict(rows=["row 2", "row 3"], features=["Dune 3"])
    >>> prediction.mean.shape
    (2, 1)
    >>> mean, std = prediction["row 2", "Dune 3"]
    >>> 1 <= mean <= 5
    True
    """

    fitted_: ModelState
    _lock: threading.RLock  # held by every change
    _call_log: CallLog | None = None  # the changes to write to the folder, inside ``updating``

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

    def fit(
        self,
        table: Any,
        *,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Headstart:
        """Train the model on a table.

        Parameters
        ----------
        table : Table, frame or path
            The observations, kinds and metadata to learn from. A frame or the path of a file is read by
            ``Table.read``.
        checkpoint : str or Path, default=None
            A folder for the progress of the training, so that an interrupted fit can be resumed.
        resume : bool, default=False
            Whether to continue from ``checkpoint``.
        **options
            The parameters of ``Table.read`` for a frame or a path: ``row``, ``feature``, ``value``,
            ``metadata``, ``kinds`` and so on.

        Returns
        -------
        Headstart
            The model itself.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart import Headstart
        >>> stars = pa.table({"user": ["ann", "bob"], "Alien": [5, 3], "Brazil": [4, 1], "Cube": [1, 2],
        ...                   "Dune": [4, 4]})
        >>> model = Headstart(adapter="bayes", quiet=True).fit(stars, row="user")
        >>> model.features
        ['Alien', 'Brazil', 'Cube', 'Dune']
        """
        device = training_device(self.device)
        table = as_table(table, "fit()", options, quiet=self.quiet)
        folder = None if checkpoint is None else Path(checkpoint)
        reporter = Reporter(self.quiet or not process_group().is_main)
        start = time.monotonic()
        LOG.info("fitting %d rows and %d features", len(table.rows), len(table.features))
        state = fit_table(table, self.checked_settings(), reporter, folder, resume, device)
        state = choose_ranking(state)
        with self._lock:
            self.fitted_ = state
        LOG.info("fitted %s in %.1f s", state.settings.chosen_adapter.name, time.monotonic() - start)
        reporter.say(str(replace(self.info, rows=process_group().span(len(state.rows))[1])))
        return self

    def refit(self, *, checkpoint: str | Path | None = None, resume: bool = False) -> Headstart:
        """Train the model again on all its observations, with the same settings and names.

        Predictions use the old model until the new one is fitted; changes wait. The parameters are those of
        ``fit``.

        Returns
        -------
        Headstart
            The model itself.
        """
        with self._lock:
            return self.fit(self.table(), checkpoint=checkpoint, resume=resume)

    def checked_settings(self) -> Settings:
        """Return the parameters of the constructor as settings; raise an error if one is invalid."""
        return Settings(
            backbone=backbone_config(self.backbone),
            adapter=self._adapter_settings(),
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
            The encoders of metadata columns, as in ``set_encoders``.
        verify : bool, default=True
            Whether to read the whole folder once to detect damage. Without this check, a large model opens at
            once, and its parts are read from the disk when they are used.

        Returns
        -------
        Headstart
            A model with exactly the predictions of the saved one.

        Raises
        ------
        ModelFileError
            If the folder is missing, damaged, of a newer format, or needs a package that is not installed.

        See Also
        --------
        save : write a model to a folder.
        updating : change a saved model in place.
        """
        model = cls.from_state(load(Path(path), verify=verify))
        model.set_encoders(encoders or {})
        LOG.info("loaded %s: %d rows, %d features", path, len(model.rows), len(model.state.feature_store))
        return model

    def save(self, path: str | Path) -> None:
        """Write the model to a folder.

        Parameters
        ----------
        path : str or Path
            A new folder, or the folder of an older model, which is replaced atomically.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/films")
        ...     loaded = Headstart.load(f"{folder}/films")
        >>> loaded.features == model.features
        True
        """
        self.state  # noqa: B018 (raises an error before the folder is made)
        check_place(Path(path))
        save(lambda: self.state, Path(path), owner=self)
        if self._call_log is not None:
            self._call_log.discard()  # ``path`` may be the folder of ``updating``
        LOG.info("saved %s", path)

    @classmethod
    @contextmanager
    def updating(cls, path: str | Path, encoders: Mapping[str, EncoderLike] | None = None) -> Iterator[Self]:
        """Change a saved model in place: ``with Headstart.updating(path) as model: model.add_feature(…)``.

        The changes are written when the block ends without an error: to the journal of the folder, or as a
        whole model if the journal would become too long or the model was fitted again. Several processes may
        change one folder: they wait for each other, and no change is lost. Inside the block, ``model.save``
        may write to the same folder. Any other change of the folder by this thread raises ``BusyError``,
        because it would be lost.

        Parameters
        ----------
        path : str or Path
            The folder of the model.
        encoders : dict, default=None
            The encoders of metadata columns, as in ``set_encoders``.

        Yields
        ------
        Headstart
            The model, to be changed inside the block.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/films")
        ...     with Headstart.updating(f"{folder}/films") as saved:
        ...         saved.add_feature("Dune 3", observations={"row 0": 5})
        ...     loaded = Headstart.load(f"{folder}/films")
        >>> loaded.features[-1]
        'Dune 3'
        """
        with open_for_changes(Path(path)) as (before, lock):
            model = cls.from_state(before.model)
            lock.owner = model
            model._call_log = notes = CallLog(before.model)
            try:
                model.set_encoders(encoders or {})
                yield model
            finally:
                model._call_log = None  # a change after the block is not written to the folder
            with model._lock:
                calls = notes.calls(model.state)
                if calls is None or not append_changes(before, calls):
                    if not before.verified:
                        load(Path(path))  # detects damage, which saving would give valid checksums
                    model.save(path)
                else:
                    LOG.info("wrote %d changes to the journal of %s", len(calls), path)

    def set_encoders(self, encoders: Mapping[str, EncoderLike]) -> None:
        """Set the encoders of metadata columns, which are not saved with the model.

        Parameters
        ----------
        encoders : dict
            The encoders by column. For a column of the type custom, its function, as in ``Table.read``. For a
            text column, the folder of its sentence encoder, if it has moved since the model was fitted.

        Raises
        ------
        InputError
            If a column does not exist or takes no encoder; the model stays unchanged.
        """
        by_column = require_mapping(encoders, "encoders", "{'poster': function}")
        with self._lock:
            before, after = self.state, self.state.with_encoders(by_column)
            if self._call_log is not None:
                self._call_log.record_unsaved(before, after)
            self.fitted_ = after

    @property
    def state(self) -> ModelState:
        """All parts of the fitted model, which later changes of the model leave unchanged."""
        try:
            return self.fitted_
        except AttributeError:
            raise NotFittedError(
                "this model is not fitted yet; call fit(table) or Headstart.load(path)"
            ) from None

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """Return a model with this ``state`` and the settings that it was fitted with."""
        settings = state.settings
        model = cls(
            settings.backbone,
            settings.adapter,
            settings.pretraining,
            settings.metatraining,
            settings.meta_share,
            settings.random_state,
            half_life=settings.half_life,
        )
        model.fitted_ = state
        return model

    @property
    def info(self) -> ModelInfo:
        """A summary: the chosen parts, the contribution of metadata columns, the expected error by shots."""
        return describe_model(self.state)

    def card(self) -> ModelCard:
        """Describe the model on one page: data, expected errors, calibration, metadata and staleness.

        Returns
        -------
        ModelCard
            The facts by section; ``to_markdown`` and ``to_html`` write them.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> card = Headstart(adapter="bayes", quiet=True).fit(table).card()
        >>> card.sections["Data"]["kinds"]
        '20 rating:1:5'
        """
        return describe_on_card(self.state)

    def staleness(self) -> Staleness:
        """Estimate from the observations since ``fit`` whether a refit would help.

        The model scores each observation just before it is added: the score is its negative log-likelihood
        minus the expected negative log-likelihood.

        Returns
        -------
        Staleness
            The mean score with its standard error, the number of observations, and whether to refit.
        """
        state = self.state
        return staleness_of(state.arrived, len(state.knowledge.cells.index))

    @property
    def features(self) -> list[str]:
        """The names of the features, in the order of ``predict``."""
        return self.state.feature_store.feature_names

    @property
    def rows(self) -> Names:
        """The names of the rows, in the order of ``predict``."""
        return self.state.rows

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the features of the fit, the most frequent first."""
        return self.state.kinds

    @property
    def metadata_columns(self) -> list[str]:
        """The metadata columns of features, in the order of the table of the fit."""
        schema = self.state.schema
        return [] if schema is None else [column.name for column in schema.columns]

    def observation_counts(self, rows: Sequence[Any] | None = None) -> NDArray[np.int64]:
        """Return the number of features that are computed from an observation of each row.

        Parameters
        ----------
        rows : list, default=None
            The names of rows of the model; all by default.

        Returns
        -------
        ndarray of shape (rows,)
            The numbers, in the order of ``rows``.
        """
        counts = count_by_row(self.state)
        return counts if rows is None else counts[self.rows.positions(as_list(rows))]

    def feature(self, feature: object) -> KnownFeature:
        """Return one feature: its kind, shots, observations and metadata.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        """
        return known_feature(self.state, feature)

    def row(self, row: object) -> KnownRow:
        """Return one row: its observations and metadata.

        Parameters
        ----------
        row : str or int
            A row of the model.
        """
        return known_row(self.state, row)

    def find_features(self, text: str) -> list[str]:
        """Return the features whose name or title contains a text, in the order of the model.

        Parameters
        ----------
        text : str
            The text; case is ignored. The title is the metadata column ``title``, or ``name``.
        """
        return search_features(self.state, text)

    def find_rows(self, text: str) -> list[str]:
        """Return the rows whose name or title contains a text, in the order of the model.

        Parameters
        ----------
        text : str
            The text; case is ignored. The title is the row metadata column ``title``, or ``name``.
        """
        return search_rows(self.state, text)

    def feature_with_title(self, title: str) -> str | None:
        """Return the name of the only feature with this title; None if there is none.

        Parameters
        ----------
        title : str
            The title; case is ignored.

        Raises
        ------
        InputError
            If several features have it.
        """
        return feature_with_title(self.state, title)

    @property
    def words(self) -> Words:
        """The nouns for rows, features and values, and the metadata column of titles."""
        return self.state.words

    def row_titles(self, rows: Sequence[Any]) -> tuple[str, ...] | None:
        """Return the titles of ``rows``, empty for a row without one; None if none has one."""
        return row_titles(self.state, self.state.rows.positions(rows).tolist())

    def table(self, *, metadata: bool = True) -> Table:
        """Return all observations of the model as a table for the next ``fit``.

        Parameters
        ----------
        metadata : bool, default=True
            Whether the table has the metadata of the features.

        Returns
        -------
        Table
            All rows, features and observations, from ``fit`` and later.
        """
        return export_table(self.state, metadata=metadata)

    def predict(
        self,
        rows: Sequence[Any] | Mapping[Any, ObservationsLike] | Any | None = None,
        features: Sequence[Any] | None = None,
    ) -> Prediction:
        """Predict every cell of some rows and features.

        Parameters
        ----------
        rows : list, dict or frame, default=None
            The names of rows; all by default. Or rows that are not in the model, with their observations:
            ``{row: {feature: value}}``, a frame with the columns row, feature and value, or a ``Table``.
            They are not added to the model.
        features : list, default=None
            The names of features; all by default.

        Returns
        -------
        Prediction
            The mean, standard deviation and interval of every cell.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> model.predict(rows=["row 0", "row 1"]).mean.shape
        (2, 20)
        >>> model.predict({"new row": {"film 0": 5, "film 1": 1}}, features=["film 2"]).rows[0]
        'new row'
        """
        state = self.state
        names, states = rows_with_states(state, rows, "predict()")
        asked = optional_list(features)
        require_few_cells(state, names, asked)
        return leave_out(state, predict_features(state, names, states, asked))

    def sample(
        self,
        rows: Sequence[Any] | Mapping[Any, ObservationsLike] | Any | None = None,
        features: Sequence[Any] | None = None,
        n: int = 1,
        *,
        random_state: int = 0,
    ) -> NDArray[np.float64]:
        """Draw the values of every cell of some rows and features jointly.

        A draw contains the uncertainty of heads, which all rows share, the uncertainty of rows, which all
        features share, and the noise of each observation. So sums, differences and other functions of
        several cells have the right uncertainty. A single cell has the distribution of ``predict``.

        Parameters
        ----------
        rows : list, dict, frame or Table, default=None
            The names of rows, all by default, or rows that are not in the model, as in ``predict``.
        features : list, default=None
            The names of features; all by default.
        n : int, default=1
            The number of draws.
        random_state : int, default=0
            The seed.

        Returns
        -------
        ndarray of shape (n, rows, features)
            The draws, in the data's own units; of a category, the positions of levels in
            ``predict().levels(feature)``. Also observed cells are drawn, as new observations of them;
            ``impute`` leaves them unchanged.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> model.sample(rows=["row 0", "row 1"], n=100).shape
        (100, 2, 20)
        """
        state, n = self.state, whole_number(n, "sample()")
        names, states = rows_with_states(state, rows, "sample()")
        asked = self.features if features is None else as_list(features)
        require_few_cells(state, names, asked, n)
        return draw_cells(state, names, states, asked, n, seed_number(random_state))

    def impute(
        self,
        m: int = 20,
        *,
        rows: Sequence[Any] | None = None,
        features: Sequence[Any] | None = None,
        random_state: int = 0,
    ) -> Imputations:
        """Fill the missing cells of the model's table ``m`` times, with joint draws (multiple imputation).

        Parameters
        ----------
        m : int, default=20
            The number of filled tables.
        rows, features : list, default=None
            The names of rows and features of the model; all by default.
        random_state : int, default=0
            The seed.

        Returns
        -------
        Imputations
            A sequence of pandas frames, in which observed cells have their observed values. Its method
            ``pool`` estimates a quantity from each and pools the estimates by Rubin's rules. A category is a
            column of labels; levels of ordered answers are numbered from 1.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> imputations = model.impute(m=5)
        >>> imputations
        Imputations(5 × 60 rows × 20 features, 581 cells filled)
        >>> def mean(frame):
        ...     return frame["film 0"].mean(), frame["film 0"].var() / len(frame)
        >>> round(imputations.pool(mean).estimate)
        4
        """
        state, m = self.state, whole_number(m, "impute()")
        names, states = rows_with_states(state, rows, "impute()")
        asked = self.features if features is None else as_list(features)
        require_missing_cells(state, asked)
        require_few_cells(state, names, asked, m)
        drawn = draw_cells(state, names, states, asked, m, seed_number(random_state))
        return fill_cells(state, drawn, export_table(state, metadata=False), names, asked)

    def recommend(
        self,
        row: object,
        n: int = 10,
        features: Sequence[Any] | None = None,
        *,
        by: By | None = None,
        exclude_observed: bool = True,
        exclude: Sequence[Any] = (),
        where: Mapping[str, Any] | None = None,
        quantile: float = 0.9,
        random_state: int = 0,
        mixed_kinds: bool = False,
        level: float = 0.9,
    ) -> Ranking:
        """Rank features for a row, best first.

        Parameters
        ----------
        row : str, int or dict
            The name of a row, or the observations ``{feature: value}`` of a row that is not in the model.
        n : int, default=10
            The number of features to return; fewer if there are fewer.
        features : list, default=None
            The features to choose from; all by default.
        by : {"mean", "lower", "upper", "sample", "lift", "relevance", "information"}, default=None
            The criterion; by default "relevance" if it ranked cells that were held out at the fit clearly
            better than "mean", otherwise "mean". "mean" is the expected value. "lower" is a lower quantile of
            the value (of the probability, for a binary feature), which avoids uncertain features; "upper" is
            an upper one and prefers them. "sample" is a random draw of the mean, given its uncertainty
            (Thompson sampling), so that uncertain features are tried in proportion to their chance to be
            best. "lift" is the mean less that of an average row, which is free of popularity. "relevance" is
            the probability of a high value (1, or a rating from three quarters of its scale) times the share
            of rows that observed the feature, for rows that choose their features. "information" is the
            information about the row that an observation would add to the features before it in the ranking.
        exclude_observed : bool, default=True
            Whether to leave out the features that the row has observed.
        exclude : list, default=()
            Features to leave out.
        where : dict, default=None
            The metadata that features must have, as ``{"genres": "Drama", "year": [2023, 2024]}``: one of the
            values in each column.
        quantile : float, default=0.9
            The quantile of ``by="upper"``, with the calibration of intervals; that of ``by="lower"`` is 1 −
            ``quantile``.
        random_state : int, default=0
            The seed of ``by="sample"``.
        mixed_kinds : bool, default=False
            Whether to compare features of different kinds or units on a common scale: a rating from 0 at its
            low end to 1 at its high end, a real minus its center in units of its scale, a probability
            unchanged. By default different kinds are an error. Information can always be compared.
        level : float, default=0.9
            The probability that each interval contains the value.

        Returns
        -------
        Ranking
            The features, best first.

        See Also
        --------
        recommend_many : rank features for several rows at once.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> ranking = model.recommend("row 0", n=3)
        >>> len(ranking), ranking[0].mean >= ranking[1].mean
        (3, True)
        >>> model.recommend({"film 0": 5, "film 1": 1}, n=2).noun
        'feature'
        """
        state = self.state
        (ranking,) = rank_features(
            state,
            one_target_row(state, row),
            whole_number(n, "recommend()"),
            Selection.of(features, exclude_observed, exclude, where),
            Criterion(default_criterion(state, by), quantile, random_state),
            mixed_kinds=mixed_kinds,
            level=level,
        )
        return ranking

    def recommend_many(
        self,
        rows: Sequence[Any] | Mapping[Any, ObservationsLike] | Any,
        n: int = 10,
        features: Sequence[Any] | None = None,
        *,
        by: By | None = None,
        exclude_observed: bool = True,
        exclude: Sequence[Any] = (),
        where: Mapping[str, Any] | None = None,
        quantile: float = 0.9,
        random_state: int = 0,
        mixed_kinds: bool = False,
        level: float = 0.9,
    ) -> dict[str, Ranking]:
        """Rank features for each of several rows, faster than row by row.

        Parameters
        ----------
        rows : list, dict or frame
            The names of rows, or rows that are not in the model with their observations, as in ``predict``.
        n, features, by, exclude_observed, exclude, where, quantile, random_state, mixed_kinds, level
            As in ``recommend``.

        Returns
        -------
        dict of str to Ranking
            The rankings by the names of rows.
        """
        state = self.state
        rankings = rank_features(
            state,
            target_rows(state, rows),
            whole_number(n, "recommend_many()"),
            Selection.of(features, exclude_observed, exclude, where),
            Criterion(default_criterion(state, by), quantile, random_state),
            mixed_kinds=mixed_kinds,
            level=level,
        )
        return {ranking.of: ranking for ranking in rankings}

    def audience(
        self,
        feature: object,
        n: int = 10,
        rows: Sequence[Any] | None = None,
        *,
        by: By = "mean",
        exclude_observed: bool = True,
        exclude: Sequence[Any] = (),
        where: Mapping[str, Any] | None = None,
        quantile: float = 0.9,
        random_state: int = 0,
        level: float = 0.9,
    ) -> Ranking:
        """Rank rows for a feature, best first: for example, the users most likely to like a new film.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        n : int, default=10
            The number of rows to return; fewer if there are fewer.
        rows : list, default=None
            The rows to choose from; all by default.
        by : {"mean", "lower", "upper", "sample", "lift", "relevance", "information"}, default="mean"
            The criterion, as in ``recommend``. ``suggest`` is a short form of ``by="information"``.
        exclude_observed : bool, default=True
            Whether to leave out the rows that have observed the feature.
        exclude : list, default=()
            Rows to leave out.
        where : dict, default=None
            The row metadata that rows must have, as in ``recommend``.
        quantile, random_state, level
            As in ``recommend``.

        Returns
        -------
        Ranking
            The rows, best first.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> ranking = model.audience("film 0", n=5)
        >>> len(ranking), ranking.noun
        (5, 'row')
        """
        return rank_rows(
            self.state,
            feature,
            whole_number(n, "audience()"),
            Selection.of(rows, exclude_observed, exclude, where),
            Criterion(by, quantile, random_state),
            level=level,
        )

    def suggest(self, feature: object, n: int = 10, rows: Sequence[Any] | None = None) -> list[str]:
        """Suggest the rows to observe next, which together inform most about the feature.

        Rows are chosen one after the other. Each choice lowers the mean variance of the feature's predictions
        over all rows most, given the choices before it. ``audience(feature, n, rows, by="information")``
        returns the same rows with these decreases and the predictions.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        n : int, default=10
            The number of rows to return; fewer if there are fewer.
        rows : list, default=None
            The rows to choose from; all by default. Rows that have observed the feature are left out.

        Returns
        -------
        list of str
            The names of the rows, best first.
        """
        return suggest_rows(self.state, feature, whole_number(n, "suggest()"), optional_list(rows))

    def similar(self, feature: object, n: int = 10) -> Similar:
        """Find the features with the most similar predictions.

        The similarity of two features is the correlation of their outputs over the rows of the model. It does
        not depend on units and kinds.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        n : int, default=10
            The number of features to return; fewer if there are fewer.

        Returns
        -------
        Similar
            The features with their similarities, the most similar first.
        """
        return similar(self.state, feature, whole_number(n, "similar()"))

    def explain(self, row: object, feature: object) -> Explanation:
        """Split a prediction into contributions of observations and metadata that add up to it.

        Parameters
        ----------
        row : str, int or dict
            The name of a row, or the observations ``{feature: value}`` of a row that is not in the model.
        feature : str or int
            A feature of the model.

        Returns
        -------
        Explanation
            The baseline and the contributions: of each observation of the row, of each metadata column of
            the feature, and of the feature's own observations.

        Raises
        ------
        InputError
            If the backbone or the adapter has no closed form, or the model does not have the observations of
            the row.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> explanation = model.explain("row 0", "film 1")
        >>> total = explanation.baseline + sum(part.value for part in explanation)
        >>> abs(total - explanation.output) < 1e-6
        True
        """
        return explain(self.state, row, feature)

    def evaluate(
        self,
        table: Any,
        shots: Sequence[int] | None = None,
        *,
        on: On | None = None,
        by: By | None = None,
        random_state: int = 0,
        **options: Unpack[ReadOptions],
    ) -> Results:
        """Evaluate the model on observations that it has not seen, without changing it.

        Parameters
        ----------
        table : Table, frame or path
            Observations of rows of the model; other rows are left out and counted. Features that are not in
            the model are tested as new ones, with contexts of ``shots`` observations. For features of the
            model, the cells that it has not observed are predicted.
        shots : sequence of int, default=None
            The numbers of shots of new features. By default those of 0, 1, 2, 4, 8, 16 and 32 that are below
            the number of observations of the largest new feature. Observations beyond the largest number are
            the targets, the same for every number. A feature without targets is left out and counted.
        on : {"features", "cells"}, default=None
            The test: new features, or cells of features of the model. By default new features, if the table
            has any.
        by : str, default=None
            The criterion of ``recommend`` and ``audience`` whose rankings to score, such as ``"mean"``: NDCG,
            recall, mean average precision, mean reciprocal rank and coverage. Ones and ratings from three
            quarters of their scale upwards are relevant. For new features all rows are ranked; for
            cells, all features that the row has not observed. By default no rankings are scored.
        random_state : int, default=0
            The seed that chooses the contexts.
        **options
            The parameters of ``Table.read`` for a frame or a path, as in ``fit``. ``kinds`` is the kind of
            the model by default, if it has only one.

        Returns
        -------
        Results
            Metrics by shots (``results.curves("rmse")``, ``results.to_markdown()``) and facts about the test
            (``results.data``). For cells there is one number of shots, the median over the cells.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=24, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table.with_features(table.features[:20]))
        >>> results = model.evaluate(table, shots=(0, 4))
        >>> results.data["features"], results.curves("rmse")["bayes"].shots
        (4, [0, 4])
        """
        state = self.state
        held_out = held_out_table(state, table, options)
        return evaluate(state, held_out, shots, on, seed_number(random_state), by)

    def add_feature(
        self,
        feature: object,
        metadata: Mapping[str, Any] | None = None,
        observations: ObservationsLike | None = None,
        kind: str | Kind | None = None,
        levels: Mapping[str, Mapping[str, Any]] | None = None,
        weight: float | Mapping[Any, float] | None = None,
    ) -> None:
        """Add a new feature, which can be predicted at once; no other prediction changes.

        Parameters
        ----------
        feature : str or int
            The name of the feature; it must not be in the model yet.
        metadata : dict, default=None
            The metadata ``{column: value}``; any column may be missing.
        observations : dict, Series or frame, default=None
            The first observations ``{row: value}``, of rows of the model.
        kind : str or Kind, default=None
            The kind of the feature, such as ``"rating:1:5"``; by default the model's most frequent kind.
            For clicks, ``"click:EXPOSURE"`` says how long the feature has been shown, from just above 0 (new)
            to 1 (as long as the features of the fit); by default this is estimated from its clicks.
        levels : dict, default=None
            For a category, the metadata of each level, ``{level: {column: value}}``, such as the right
            option: ``{"A": {"right": 1}}``. Levels and columns may be missing.
        weight : float or dict, default=None
            How much the observations count, 1 by default: one number above 0, or ``{row: number}``.

        Raises
        ------
        InputError
            If an argument is invalid; the model stays unchanged.

        See Also
        --------
        add_features : add several features at once.
        observe_feature : add observations of a feature of the model.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> model.add_feature("Dune 3", metadata={"year": 2026}, observations={"row 0": 5, "row 1": 4})
        >>> model.feature("Dune 3")
        'Dune 3' (rating:1:5), 2 observations; year: 2026
        """
        name = as_name(feature, "feature")
        parts = {
            "metadata": metadata,
            "observations": observations,
            "kind": kind,
            "levels": levels,
            "weight": weight,
        }
        self.add_features({name: {key: part for key, part in parts.items() if part is not None}})

    def add_features(self, features: Mapping[Any, Mapping[str, Any]]) -> None:
        """Add several features at once; add none if one is invalid.

        Parameters
        ----------
        features : dict
            ``{feature: {"metadata": …, "observations": …, "kind": …, "levels": …, "weight": …}}``; each part
            is as in ``add_feature`` and may be missing.
        """
        by_name = require_mapping(features, "add_features()", "{'Dune 3': {'observations': …}}")
        unique_names(by_name, "add_features()", "feature")
        with self._lock:
            state = self.state
            if new := check_new_features(state, expand_new_features(state, by_name)):
                _warn_unusual(state.schema, [feature.record for feature in new])
                self._change(add_features(state, new), lambda: add_features_call(state, new))
                LOG.info("added %s", count(len(new), "feature"))
                LOG.debug("added %s", [feature.name for feature in new])

    def remove_feature(self, feature: object) -> None:
        """Remove a feature; no other prediction changes.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        """
        with self._lock:
            require_whole(self.state, feature, "remove")
            for column in columns_of(self.state, [feature]):
                state = self.state
                name = state.feature_store[column].name
                call = {"verb": "remove_feature", "name": name}
                self._change(remove_feature(state, name), partial(dict, call))
                LOG.info("removed feature %r", name)

    def rename_feature(self, feature: object, to: object) -> None:
        """Rename a feature; no prediction changes.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        to : str or int
            The new name; no feature may have it yet.
        """
        name = as_name(to, "feature")
        with self._lock:
            state = self.state
            for column, new in renamed_columns(state, feature, name).items():
                known = self.state.feature_store[column]
                call = {"verb": "rename_feature", "name": known.name, "to": new}
                self._change(self.state.rename_feature(known, new), partial(dict, call))
            LOG.info("renamed feature %r to %r", feature, name)

    def observe(
        self,
        observations: Any,
        *,
        row: str | None = None,
        feature: str | None = None,
        value: str | None = None,
        time: object = None,
        weight: object = None,
        update: Update = "both",
        unknown: Unknown = "error",
        missing: MissingLike = None,
        separator: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
    ) -> Observed:
        """Add observations of any rows and features of the model.

        The heads of the features and the states of the rows are computed again from all their observations,
        so that the result does not depend on how the observations are divided into calls. An observed cell
        gets the new value.

        Parameters
        ----------
        observations : list of (row, feature, value), frame or path
            The observations; a frame or file has the long form.
        row, feature, value : str, default=None
            The columns of a frame or file; "row", "feature" and "value" by default.
        time : str, number or date, default=None
            If the model has a half-life, the times of the observations: the column of a frame or file,
            "time" by default, or one time for a list. An entry of a list may also be
            (row, feature, value, time).
        weight : str or number or sequence of numbers, default=None
            How much the observations count, 1 by default: the column of a frame or file, or one number, or
            one for each entry of a list. All are above 0.
        update : {"both", "features", "rows"}, default="both"
            The part of the model to update: the features, the rows, or both.
        unknown : {"error", "add", "skip"}, default="error"
            What to do with rows and features that are not in the model: refuse all observations, add the rows
            and features first, without metadata and with the model's most frequent kind, or leave their
            observations out.
        missing : number, text or list of them, default=None
            Codes for missing values in a frame or file, as in ``Table.read``.
        separator, decimal, encoding : str, default=None
            The format of a text file, as in ``Table.read``.

        Returns
        -------
        Observed
            The updated features and rows.

        Warns
        -----
        SurpriseWarning
            If a value lies more than 8 standard deviations from its prediction. It is accepted, and
            intervals widen.

        See Also
        --------
        observe_feature : add observations of one feature, and update nothing else.
        observe_row : add observations of one row, and update nothing else.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> observed = model.observe([("row 0", "film 2", 4), ("row 1", "film 2", 2)])
        >>> observed.features
        ('film 2',)
        >>> model.row("row 0").observations["film 2"]
        4.0
        """
        columns = Columns(row, feature, value)
        text = TextFormat(separator, decimal, encoding, MissingCodes.of(missing))
        unknown = check_unknown(unknown)
        with self._lock:
            state = self.state
            if unknown == "error":
                return self._observe(read_triples(state, observations, columns, text, time, weight), update)
            entries = open_entries(state, observations, columns, text, time, weight)
            names = find_unknown(state, entries)
            rows, features = tuple(names.rows), tuple(names.features)
            if unknown == "skip":
                known, weight = drop_unknown(entries, weight, names)
                triples = read_triples(state, known, columns, text, time, weight)
                observed = self._observe(triples, update)
                return replace(observed, skipped_features=features, skipped_rows=rows)
            with self._all_or_nothing() as trial:
                trial.add_features({name: {} for name in features})
                trial.add_rows({name: {} for name in rows})
                triples = read_triples(trial.state, entries, columns, text, time, weight)
                observed = trial._observe(triples, update)
            return replace(observed, added_features=features, added_rows=rows)

    def observe_feature(
        self,
        feature: object,
        observations: ObservationsLike,
        *,
        time: object = None,
        weight: float | Mapping[Any, float] | None = None,
        update: Update = "features",
    ) -> Observed:
        """Add observations of one feature; by default all other predictions stay the same, bit for bit.

        Parameters
        ----------
        feature : str or int
            A feature of the model.
        observations : dict, Series or frame
            The observations ``{row: value}``, of rows of the model.
        time : number or date, default=None
            The time of the observations, if the model has a half-life.
        weight : float or dict, default=None
            How much the observations count, 1 by default: one number above 0, or ``{row: number}``.
        update : {"features", "both", "rows"}, default="features"
            The part of the model to update, as in ``observe``.

        Returns
        -------
        Observed
            The updated features and rows.

        Warns
        -----
        SurpriseWarning
            As in ``observe``.
        """
        with self._lock:
            return self._observe(feature_triples(self.state, feature, observations, time, weight), update)

    def observe_row(
        self,
        row: object,
        observations: ObservationsLike,
        *,
        time: object = None,
        weight: float | None = None,
        update: Update = "rows",
    ) -> Observed:
        """Add observations of one row; by default the predictions of all other rows stay the same.

        Parameters
        ----------
        row : str or int
            A row of the model.
        observations : dict, Series or frame
            The observations ``{feature: value}``, of features of the model.
        time : number or date, default=None
            The time of the observations, if the model has a half-life.
        weight : float, default=None
            How much each of the observations counts, 1 by default.
        update : {"rows", "both", "features"}, default="rows"
            The part of the model to update, as in ``observe``.

        Returns
        -------
        Observed
            The updated features and rows.

        Warns
        -----
        SurpriseWarning
            As in ``observe``.
        """
        with self._lock:
            return self._observe(row_triples(self.state, row, observations, time, weight), update)

    def _observe(self, triples: Triples, update: Update) -> Observed:
        """Add checked observations; the caller holds the lock."""
        state = self.state
        require_supported(state, triples.features, update)
        after, observed, surprise = observe_triples(state, triples, update)
        if surprise is not None:  # before the change: a filter may turn the warning into an error
            warnings.warn(surprise, SurpriseWarning, stacklevel=4)
        self._change(after, lambda: observe_call(state, after, triples, update))
        LOG.debug("observed: %s", observed)
        return observed

    def add_row(
        self,
        row: object,
        metadata: Mapping[str, Any] | None = None,
        observations: ObservationsLike | None = None,
        *,
        update: Update = "rows",
    ) -> None:
        """Add a new row, which can be predicted at once.

        Parameters
        ----------
        row : str or int
            The name of the row; it must not be in the model yet.
        metadata : dict, default=None
            The metadata ``{column: value}``, if the model was fitted with row metadata; any column may be
            missing.
        observations : dict, Series or frame, default=None
            The first observations ``{feature: value}``, of features of the model.
        update : {"rows", "both"}, default="rows"
            As in ``add_rows``.

        Raises
        ------
        InputError
            If an argument is invalid; the model stays unchanged.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> model.add_row("new row", observations={"film 0": 5, "film 1": 2})
        >>> model.row("new row").observations
        {'film 0': 5.0, 'film 1': 2.0}
        """
        name = as_name(row, "row")
        records = None if metadata is None else {name: metadata}
        self.add_rows({name: {} if observations is None else observations}, records, update=update)

    def add_rows(
        self,
        rows: Mapping[Any, ObservationsLike] | Any,
        metadata: Mapping[Any, Mapping[str, Any]] | None = None,
        *,
        update: Update = "rows",
    ) -> None:
        """Add several rows at once; add none if one is invalid.

        Parameters
        ----------
        rows : dict or frame
            The new rows with their observations: ``{row: {feature: value}}``, or a frame with the columns
            row, feature and value. A row may have no observations.
        metadata : dict, default=None
            The metadata ``{row: {column: value}}``, if the model was fitted with row metadata.
        update : {"rows", "both"}, default="rows"
            Whether the observations determine only the states of the new rows, or also update the heads of
            their features. With "rows" no other prediction changes.
        """
        with self._lock:
            state = self.state
            new = check_new_rows(state, rows, metadata, update)
            if state.row_metadata is not None:
                _warn_unusual(state.row_metadata.schema, new.records)
            self._change(add_rows(state, new), lambda: add_rows_call(state, new))
            LOG.info("added %s", count(len(new.names), "row"))

    def remove_row(self, row: object) -> None:
        """Remove a row, and its observations from the contexts of features.

        The heads of these features are computed again without the row. The backbone, which was trained with
        the row, changes only at the next ``fit``.

        Parameters
        ----------
        row : str or int
            A row of the model.
        """
        with self._lock:
            state = self.state
            position = state.rows.position(row)
            name = state.rows[position]
            self._change(remove_row(state, position), lambda: {"verb": "remove_row", "name": name})
            LOG.info("removed row %r", name)

    def rename_row(self, row: object, to: object) -> None:
        """Rename a row; no prediction changes.

        Parameters
        ----------
        row : str or int
            A row of the model.
        to : str or int
            The new name; no row may have it yet.
        """
        name = as_name(to, "row")
        with self._lock:
            state = self.state
            position = state.rows.position(row)
            known = state.rows[position]
            after = state.rename_row(position, name)
            self._change(after, lambda: {"verb": "rename_row", "name": known, "to": name})
            LOG.info("renamed row %r to %r", known, name)

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (scikit-learn passes it)
        """Return the parameters of the constructor by name.

        Parameters
        ----------
        deep : bool, default=True
            Has no effect, because no parameter is an estimator; scikit-learn passes it.
        """
        return {name: getattr(self, name) for name in _defaults(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the constructor, and return the model itself."""
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

    def _repr_html_(self) -> str:
        lines = self.info.lines() if hasattr(self, "fitted_") else [("state", "not fitted yet")]
        return facts_html(lines, repr(self))

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Create the lock, which a subclass with its own constructor needs too."""
        model = super().__new__(cls)
        model._lock = threading.RLock()
        return model

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, without the lock and the changes to write to a folder."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_call_log")}

    def _change(self, after: ModelState, call: Callable[[], Call]) -> None:
        """Replace the state, and note the call for the journal inside ``updating``."""
        if self._call_log is not None:
            self._call_log.record(self.fitted_, after, call())
        self.fitted_ = after

    @contextmanager
    def _all_or_nothing(self) -> Iterator[Self]:
        """Make several changes one: change the copy that is yielded; an error in the block changes nothing.

        The caller holds the lock.
        """
        before, trial = self.state, copy(self)
        trial._call_log = CallLog(before)
        yield trial
        if self._call_log is not None:
            self._call_log.record(before, trial.fitted_, *(trial._call_log.calls(trial.fitted_) or ()))
        self.fitted_ = trial.fitted_

    def _adapter_settings(self) -> AdapterConfig | Literal["auto"]:
        """Return the settings of the adapter, or "auto"."""
        if isinstance(self.adapter, str) and self.adapter == "auto":
            return "auto"
        return adapter_config(self.adapter, seed=self.random_state)


def _warn_unusual(schema: MetadataSchema | None, records: Sequence[Mapping[str, object] | None]) -> None:
    """Warn about new metadata that is not known to the model; a filter may turn the warning into an error."""
    if messages := describe_unusual(schema, records):
        warnings.warn("; ".join(messages), MetadataWarning, stacklevel=4)


def _defaults(model: type) -> dict[str, Any]:
    """Return the parameters of a constructor with their default values."""
    parameters = list(inspect.signature(model.__init__).parameters.values())[1:]  # type: ignore[misc]
    return {parameter.name: parameter.default for parameter in parameters}
