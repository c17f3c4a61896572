"""Settings of a benchmark."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import ADAPTERS, adapter_config
from headstart.backbones.registry import AnyBackbone
from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean, listed
from headstart.training.choosing import AUTO
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig


class BenchmarkConfig(Config):
    """Settings of a benchmark: what is compared, and how.

    Parameters
    ----------
    methods : tuple of str
        ``"auto"`` for what a fit does by default, or names of adapters such as ``"knn-10"``; each once.
    shots : tuple of int
        Numbers of observations of a held-out feature that a method is given.
    splits : int
        Number of random splits of the features.
    seed : int
        Seed of the first split; split i uses ``seed + i``.
    test_share : float
        Share of the features that is held out as new.
    meta_share : float, optional
        Share of the other features that trains only the adapters, as in the paper. By default all of
        them train both the backbone and the adapters.
    by : str, optional
        Metadata column of numbers or dates: the features with the largest values are held out. By
        default the split is random.
    test_rows : float
        Share of the rows, at most 500, that is held out from everything that is trained, to score
        predictions by the observations of a new row. 0 holds out none.
    row_shots : tuple of int
        Numbers of observations of a held-out row that describe it. Those that leave nothing to test on in
        half of the rows are left out.
    backbone : str, dict or BackboneConfig
        Name or settings of the backbone.
    pretraining : PretrainingConfig
        How the backbone is trained.
    metatraining : MetaTrainingConfig
        How adapters are trained. A value that is not set here is chosen by each adapter.
    adapters : dict
        Settings by the adapter's name, such as ``{"chn": {"encoding": 25}}``.

    Examples
    --------
    >>> BenchmarkConfig(methods=("mean", "knn-10"), splits=2).method("knn-10", seed=0).neighbours
    10
    """

    methods: tuple[str, ...] = ("auto", "chn", "mean", "mean-head", "knn-10")
    shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    splits: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)
    test_share: float = Field(0.1, gt=0, lt=1)
    meta_share: float | None = Field(None, gt=0, lt=1)
    by: str | None = None
    test_rows: float = Field(0.1, ge=0, lt=1)
    row_shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    backbone: AnyBackbone = Field("factorisation", validate_default=True)
    pretraining: PretrainingConfig = PretrainingConfig()
    metatraining: MetaTrainingConfig = MetaTrainingConfig()
    adapters: dict[str, dict[str, Any]] = Field({})

    def method(self, name: str, seed: int) -> AdapterConfig:
        """Return the settings of a method, with the settings in ``adapters`` applied."""
        return adapter_config(name, seed, self.adapters)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON; what is not used is left out.

        So a benchmark without held-out rows has the same settings as one made before there were any.
        """
        unused = set() if self.test_rows else {"test_rows", "row_shots"}
        settings = self.model_dump(mode="json", exclude={"pretraining", "metatraining", *unused})
        for part in ("pretraining", "metatraining"):  # methods choose the values that are not set
            settings[part] = getattr(self, part).model_dump(mode="json", exclude_unset=True)
        return settings

    def check_methods(self) -> None:
        """Refuse methods that are unknown or given twice, and settings of unknown adapters."""
        for method in self.methods:
            if method != AUTO:
                self.method(method, self.seed)  # raises an error if the name is unknown
        if AUTO in self.methods and self.meta_share is not None:
            raise InputError("with a meta_share the methods must be named; 'auto' trains on all features")
        for name in self.adapters:
            if name not in ADAPTERS:
                hint = did_you_mean(name, ADAPTERS.parts())
                raise UnknownNameError(f"settings for an unknown adapter {name!r}{hint}")
        repeated = [method for i, method in enumerate(self.methods) if method in self.methods[:i]]
        if not self.methods or repeated:
            problem = f"{listed(repeated)} given twice" if repeated else "none given"
            raise InputError(f"a benchmark needs methods, each once: {problem}")
