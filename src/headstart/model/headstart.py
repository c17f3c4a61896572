"""Headstart: the model a user holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import adapter_config
from headstart.backbones.protocol import BackboneConfig
from headstart.backbones.registry import backbone_config
from headstart.config import Config
from headstart.core.predictive import predict_grid
from headstart.core.states import RowStates
from headstart.errors import InputError, NotFittedError
from headstart.model import folder
from headstart.model.catalogue import Feature
from headstart.model.fitted import Fitted
from headstart.model.fitting import fit_table
from headstart.model.intake import (
    Observations,
    context_of,
    encode_rows,
    new_feature,
    require_mapping,
    unique_names,
)
from headstart.model.prediction import Prediction
from headstart.model.settings import Settings
from headstart.model.suggestion import most_telling
from headstart.progress import Reporter
from headstart.table import Kind, Kinds, Names, Table
from headstart.table.kinds import KindType
from headstart.table.names import as_name
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig

ConfigT = TypeVar("ConfigT", bound=Config)

MOST_CELLS = 50_000_000  # of one prediction; beyond, memory would be the surprise


class Headstart(BaseEstimator):  # type: ignore[misc]
    """Predicts the missing values of a sparse table, and takes new features at once.

    Parameters say what to train: ``backbone`` and ``adapter`` are names or settings, ``pretraining``
    and ``metatraining`` settings or dicts of them. All features teach the backbone and, masked from
    it in turn, the adapter too; with ``meta_share``, that share of them teaches only the adapter, as in
    the paper. ``quiet`` hides progress. The same ``random_state`` gives the same model. After ``fit``
    all is in ``fitted_``.
    """

    def __init__(
        self,
        backbone: str | BackboneConfig | Mapping[str, Any] = "factorisation",
        adapter: str | AdapterConfig | Mapping[str, Any] = "chn-bayes",
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
        """Train on a table. With ``checkpoint``, a folder, an interrupted fit can be resumed."""
        if not isinstance(table, Table):
            raise InputError(f"fit() takes a Table (see Table.read); got {type(table).__name__}")
        where = None if checkpoint is None else Path(checkpoint)
        self.fitted_ = fit_table(table, self._settings(), Reporter(self.quiet), where, resume)
        return self

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
        """Make a new feature predictable, from whatever is known of it: nothing else changes."""
        known = as_name(name, "feature")
        self.add_features({known: {"metadata": metadata, "observations": observations, "kind": kind}})

    def add_features(self, features: Mapping[Any, Mapping[str, Any]]) -> None:
        """Add many at once: ``{name: {"metadata": …, "observations": …, "kind": …}}``, each part optional."""
        fitted = self._fitted
        given = require_mapping(features, "add_features()", "{'Dune 3': {'observations': …}}")
        unique_names(given, "add_features()", "feature")
        new = [new_feature(fitted, name, parts) for name, parts in given.items()]
        if new:
            fitted.adapt(new)

    def observe(self, name: object, observations: Observations) -> None:
        """Refine a feature's head by more observations; a row observed before gets its new value."""
        fitted = self._fitted
        feature = fitted.catalogue[name]
        if feature.fixed:
            raise InputError(
                f"feature {feature.name!r} was trained into the backbone, whose heads are fixed with this "
                "adapter; fit() with adapter='chn-bayes' or 'bayes' to observe any feature further"
            )
        rows, values = context_of(feature.name, observations, feature.kind, fitted.rows)
        fitted.observe(feature, rows, values)

    def suggest(self, name: object, rows: Sequence[Any] | None = None, n: int = 10) -> list[str]:
        """Which rows to observe next: the ``n`` that together tell most about the feature, best first.

        Each is chosen in the light of those before it, by how much it lowers the variance of the
        feature's predictions over all rows. ``rows`` are those to choose from, all where nothing is
        said; those already observed are left out.
        """
        fitted = self._fitted
        features, heads = fitted.catalogue.take([name])
        if not fitted.adapter.gives_uncertainty:
            raise InputError(
                "suggest() needs an adapter that knows how sure it is; fit() with adapter='chn-bayes' "
                "or 'bayes'"
            )
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"suggest() takes a whole number n from 1 up; got {n!r}")
        names = list(fitted.rows) if rows is None else [as_name(row, "row") for row in _as_list(rows)]
        places = np.setdiff1d(fitted.rows.positions(names), features[0].rows)
        candidates, kind = torch.from_numpy(places), features[0].kind.type
        chosen = most_telling(heads, fitted.states, candidates, kind, int(n), fitted.knowledge.likelihood)
        return [fitted.rows[place] for place in chosen]

    def remove_feature(self, name: object) -> None:
        """Forget a feature; no other prediction changes."""
        self._fitted.catalogue.remove(name)

    # -- rows -------------------------------------------------------------------------------------

    def add_rows(self, rows: Mapping[Any, Observations]) -> None:
        """Make new rows known by name, from their observations, so that contexts can hold them too."""
        fitted = self._fitted
        given = require_mapping(rows, "add_rows()", "{'u99': {'Alien': 5}}")
        names = unique_names(given, "add_rows()", "row")
        known = [name for name in names if name in fitted.rows]
        if known:
            raise InputError(f"row {known[0]!r} is already in the model")
        states = encode_rows(fitted, given)
        fitted.rows = Names([*fitted.rows, *names], "row")
        fitted.states = RowStates.concatenate([fitted.states, states])

    # -- prediction -------------------------------------------------------------------------------

    def predict(
        self,
        rows: Sequence[Any] | Mapping[Any, Observations] | None = None,
        features: Sequence[Any] | None = None,
    ) -> Prediction:
        """Predict rows × features, by name; all of them where nothing is said.

        ``rows`` may also map any name to observations, ``{"new": {"Alien": 5}}``: such a row is
        predicted from exactly these, and not remembered.
        """
        fitted = self._fitted
        if isinstance(rows, Mapping):
            names, states = unique_names(rows, "predict()", "row"), encode_rows(fitted, rows)
        else:
            names = list(fitted.rows) if rows is None else [as_name(row, "row") for row in _as_list(rows)]
            states = fitted.states.take(torch.from_numpy(fitted.rows.positions(names)))
        wanted = self.features if features is None else _as_list(features)
        if len(names) * len(wanted) > MOST_CELLS:
            raise InputError(
                f"{len(names)} rows × {len(wanted)} features are too many for one prediction "
                f"(at most {MOST_CELLS:,} cells); ask for fewer rows or features at a time"
            )
        return self._predict(Names(names, "row"), states, wanted)

    @torch.no_grad()
    def _predict(self, rows: Names, states: RowStates, names: Sequence[Any]) -> Prediction:
        fitted = self._fitted
        features, heads = fitted.catalogue.take(names)
        kinds = Kinds([feature.kind for feature in features])
        types = torch.from_numpy(kinds.types)
        shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
        factor = fitted.calibration.factor(shots, types).double()
        mean, std = np.empty((2, len(rows), len(features)))
        for part in torch.split(torch.arange(len(rows)), 1024):
            predictive = predict_grid(heads, states.take(part), types, fitted.knowledge.likelihood)
            mean[part] = predictive.mean.float().numpy()
            std[part] = (factor * predictive.std.float()).float().numpy()
        std *= kinds.spans
        binary = kinds.types == KindType.BINARY
        std[:, binary] = np.sqrt(mean[:, binary] * (1 - mean[:, binary]))
        mean = kinds.unscale(mean, np.arange(len(kinds)))
        lows, highs = (np.array([getattr(kind, end) for kind in kinds]) for end in ("low", "high"))
        found = Names([feature.name for feature in features], "feature")
        return Prediction(rows, found, kinds, np.clip(mean, lows, highs, out=mean), std)

    # -- files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model to a folder; an older model there is replaced in one step."""
        folder.save(self._fitted, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Headstart:
        """Read a saved model."""
        return cls._holding(folder.load(Path(path)))

    @classmethod
    @contextmanager
    def updating(cls, path: str | Path) -> Iterator[Headstart]:
        """Change a saved model in place: ``with Headstart.updating(path) as model: model.add_feature(…)``.

        It is saved when the block ends without an error. Of several processes that do so, one after
        the other has its turn, and no change is lost.
        """
        with folder.updating(Path(path)) as fitted:
            yield cls._holding(fitted)

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

    def _settings(self) -> Settings:
        def filled(kind: type[ConfigT], given: Any) -> ConfigT:
            if isinstance(given, kind):
                return given
            return kind(**({} if given is None else require_mapping(given, kind.__name__, "{'epochs': 100}")))

        return Settings(
            backbone=backbone_config(self.backbone),
            adapter=adapter_config(self.adapter, seed=self.random_state),
            pretraining=filled(PretrainingConfig, self.pretraining),
            metatraining=filled(MetaTrainingConfig, self.metatraining),
            meta_share=self.meta_share,
            random_state=self.random_state,
        )


def _as_list(names: Any) -> list[Any]:
    """A single name is a list of one; a string is never a list of letters."""
    single = isinstance(names, str) or np.isscalar(names)
    return [names] if single else list(names)
