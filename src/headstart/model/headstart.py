"""Headstart: the model a user holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import adapter_config
from headstart.backbones.protocol import BackboneConfig
from headstart.backbones.registry import backbone_config
from headstart.errors import InputError, NotFittedError, SurpriseWarning, argument, worded
from headstart.model import folder
from headstart.model.catalogue import Feature
from headstart.model.estimator import Estimator
from headstart.model.fitted import Fitted
from headstart.model.fitting import fit_table
from headstart.model.info import ModelInfo, info_of
from headstart.model.intake import (
    Observations,
    context_of,
    encode_rows,
    new_features,
    require_mapping,
    unique_names,
)
from headstart.model.predicting import predict_features
from headstart.model.prediction import Prediction
from headstart.model.settings import Settings
from headstart.model.suggestion import most_telling
from headstart.model.surprise import surprise
from headstart.progress import Reporter
from headstart.table import Kind, Names, Table
from headstart.table.encoders import EncoderLike
from headstart.table.names import as_name
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig

MOST_CELLS = 50_000_000  # of one prediction; beyond, memory would be the surprise


class Headstart(Estimator):
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
    random_state : int, default=0
        The same number gives the same model.
    quiet : bool, default=False
        Whether to hide progress.

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

    def __init__(
        self,
        backbone: str | BackboneConfig | Mapping[str, Any] = "factorisation",
        adapter: str | AdapterConfig | Mapping[str, Any] = "auto",
        pretraining: PretrainingConfig | Mapping[str, Any] | None = None,
        metatraining: MetaTrainingConfig | Mapping[str, Any] | None = None,
        meta_share: float | None = None,
        random_state: int = 0,
        quiet: bool = False,
    ) -> None:
        self.backbone = backbone
        self.adapter = adapter
        self.pretraining = pretraining
        self.metatraining = metatraining
        self.meta_share = meta_share
        self.random_state = random_state
        self.quiet = quiet

    def fit(self, table: Table, *, checkpoint: str | Path | None = None, resume: bool = False) -> Headstart:
        """Train on a table.

        Parameters
        ----------
        table : Table
            The observations, kinds and metadata to learn from; see ``Table.read``.
        checkpoint : str or Path, default=None
            A folder in which training keeps its progress, so that an interrupted fit can be resumed.
        resume : bool, default=False
            Whether to continue with what ``checkpoint`` holds.

        Returns
        -------
        Headstart
            The model itself.
        """
        if not isinstance(table, Table):
            raise InputError(f"fit() takes a Table (see Table.read); got {type(table).__name__}")
        where = None if checkpoint is None else Path(checkpoint)
        reporter = Reporter(self.quiet)
        fitted = fit_table(table, self._settings(), reporter, where, resume)
        with self._writing:
            self.fitted_ = fitted
        reporter.say(str(self.info))
        return self

    @property
    def info(self) -> ModelInfo:
        """What was chosen, what each metadata column contributes, and the error to expect by shots."""
        return info_of(self._fitted)

    # -- features ---------------------------------------------------------------------------------

    @property
    def features(self) -> list[str]:
        """The names of all features the model predicts."""
        return list(self._fitted.catalogue)

    @property
    def rows(self) -> Names:
        """The names of the rows the model knows."""
        return self._fitted.rows

    def feature(self, name: object) -> Feature:
        """What the model holds of one feature: its kind, shots and context."""
        return self._fitted.catalogue[name]

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
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"suggest() takes a whole number n from 1 up; got {n!r}")
        names = list(fitted.rows) if rows is None else [as_name(row, "row") for row in _as_list(rows)]
        places = np.setdiff1d(fitted.rows.positions(names), features[0].rows)
        candidates, kind = torch.from_numpy(places), int(fitted.kinds_of(features))
        chosen = most_telling(heads, fitted.states, candidates, kind, int(n), fitted.knowledge.likelihood)
        return [fitted.rows[place] for place in chosen]

    def remove_feature(self, name: object) -> None:
        """Remove a feature; no other prediction changes."""
        with self._writing:
            self.fitted_ = self._fitted.without(name)

    # -- rows -------------------------------------------------------------------------------------

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

    # -- prediction -------------------------------------------------------------------------------

    def predict(
        self,
        rows: Sequence[Any] | Mapping[Any, Observations] | None = None,
        features: Sequence[Any] | None = None,
    ) -> Prediction:
        """Predict rows × features.

        Parameters
        ----------
        rows : list or dict, default=None
            Names of rows; all by default. Or ``{name: {feature: value}}``: such a row is predicted from
            exactly these observations, and is not kept.
        features : list, default=None
            Names of features; all by default.

        Returns
        -------
        Prediction
            Mean, standard deviation and intervals of every cell.
        """
        fitted = self._fitted
        if isinstance(rows, Mapping):
            names, states = unique_names(rows, "predict()", "row"), encode_rows(fitted, rows)
        else:
            names = list(fitted.rows) if rows is None else [as_name(row, "row") for row in _as_list(rows)]
            states = fitted.states.take(torch.from_numpy(fitted.rows.positions(names)))
        wanted = list(fitted.catalogue) if features is None else _as_list(features)
        if len(names) * len(wanted) > MOST_CELLS:
            raise InputError(
                f"{len(names)} rows × {len(wanted)} features are too many for one prediction "
                f"(at most {MOST_CELLS:,} cells); ask for fewer rows or features at a time"
            )
        return predict_features(fitted, Names(names, "row"), states, wanted)

    # -- files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model to a folder.

        Parameters
        ----------
        path : str or Path
            A new folder, or that of an older model, which is replaced in one step.
        """
        self._fitted  # noqa: B018 (an error before anything is made)
        folder.save(lambda: self._fitted, Path(path), owner=self)

    @classmethod
    def load(cls, path: str | Path, encoders: Mapping[str, EncoderLike] | None = None) -> Headstart:
        """Read a saved model.

        Parameters
        ----------
        path : str or Path
            The folder of the model.
        encoders : dict, default=None
            What encodes metadata columns of new features, as in ``set_encoders``.

        Returns
        -------
        Headstart
            A model that predicts exactly what the saved one did.

        Raises
        ------
        ModelFileError
            If the folder is missing, damaged, of a newer format, or needs a package that is not there.
        """
        model = cls._holding(folder.load(Path(path)))
        model.set_encoders(encoders or {})
        return model

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
            self.fitted_ = replace(fitted, encoders={**fitted.encoders, **given})

    @classmethod
    @contextmanager
    def updating(
        cls, path: str | Path, encoders: Mapping[str, EncoderLike] | None = None
    ) -> Iterator[Headstart]:
        """Change a saved model in place: ``with Headstart.updating(path) as model: model.add_feature(…)``.

        The model is saved when the block ends without an error. If several processes do so, one waits
        for the other, and no change is lost. Inside the block the model itself may be saved too; any other
        change of the same folder by this thread raises ``BusyError``, because it would be lost.
        ``encoders`` is as in ``set_encoders``.
        """
        with folder.updating(Path(path)) as (fitted, lock):
            model = cls._holding(fitted)
            lock.owner = model
            model.set_encoders(encoders or {})
            yield model
            model.save(path)

    @classmethod
    def _holding(cls, fitted: Fitted) -> Headstart:
        settings = fitted.settings
        model = cls(
            settings.backbone,
            settings.adapter,
            settings.pretraining,
            settings.metatraining,
            settings.meta_share,
            settings.random_state,
        )
        model.fitted_ = fitted
        return model

    # -- checks -----------------------------------------------------------------------------------

    @property
    def _fitted(self) -> Fitted:
        try:
            return self.fitted_
        except AttributeError:
            raise NotFittedError(
                "this model is not fitted yet; call fit(table) or Headstart.load(path)"
            ) from None

    def _adapter(self) -> AdapterConfig | Literal["auto"]:
        if isinstance(self.adapter, str) and self.adapter == "auto":
            return "auto"
        return adapter_config(self.adapter, seed=self.random_state)

    def _settings(self) -> Settings:
        return Settings(
            backbone=backbone_config(self.backbone),
            adapter=self._adapter(),
            pretraining=PretrainingConfig.of(self.pretraining),
            metatraining=MetaTrainingConfig.of(self.metatraining),
            meta_share=self.meta_share,
            random_state=self.random_state,
        )


def _as_list(names: Any) -> list[Any]:
    """A single name is a list of one; a string is never a list of letters."""
    single = isinstance(names, str) or np.isscalar(names)
    return [names] if single else list(names)
