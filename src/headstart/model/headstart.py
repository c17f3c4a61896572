"""Headstart: the model a user holds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import adapter_config
from headstart.backbones.protocol import BackboneConfig
from headstart.backbones.registry import backbone_config
from headstart.core.devices import training_device
from headstart.crew import crew
from headstart.errors import InputError
from headstart.model.answers import Answers
from headstart.model.base import LOG
from headstart.model.changes import Changes
from headstart.model.files import Files
from headstart.model.fitting import fit_table
from headstart.model.inputs.frames import is_frame
from headstart.model.living import Living
from headstart.model.parts.settings import Settings
from headstart.model.verbs import Verbs
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.times import half_life_of
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig


class Headstart(Answers, Verbs, Changes, Living, Files):
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
        reporter = Reporter(self.quiet or not crew().leads)
        start = time.monotonic()
        LOG.info("fitting %d rows and %d features", len(table.rows), len(table.features))
        fitted = fit_table(table, self.checked_settings(), reporter, where, resume, device)
        with self._writing:
            self.fitted_ = fitted
        LOG.info("fitted %s in %.1f s", fitted.settings.chosen_adapter.name, time.monotonic() - start)
        reporter.say(str(replace(self.info, rows=crew().span(len(fitted.rows))[1])))
        return self

    def refit(self, *, checkpoint: str | Path | None = None, resume: bool = False) -> Headstart:
        """Fit anew on everything the model holds, with the same settings; names stay the same.

        Whoever reads the model meanwhile sees it as it was; changes wait. The parameters are those of
        ``fit``.
        """
        with self._writing:
            return self.fit(self.table(), checkpoint=checkpoint, resume=resume)

    def _adapter(self) -> AdapterConfig | Literal["auto"]:
        if isinstance(self.adapter, str) and self.adapter == "auto":
            return "auto"
        return adapter_config(self.adapter, seed=self.random_state)

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
