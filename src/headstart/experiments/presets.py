"""Define the paper's experiments: data, methods and hyper-parameters of each.

A preset has the settings of one data set, as in the paper or tuned. A study is one benchmark. An experiment
is one figure or table made from studies; ``reproduce`` runs it.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import field_validator

from headstart.adapters.chn import CHNConfig
from headstart.adapters.finetuning import MAMLConfig
from headstart.backbones.pvae import PVAEConfig
from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.evaluate.benchmark import BenchmarkConfig
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig

_Settings = TypeVar("_Settings", bound=Config)


class Preset(Config):
    """The settings of a benchmark on one data set."""

    name: str
    test_share: float  # share of the features that is held out as new
    meta_share: float  # share of the other features that trains only the adapters
    backbone: PVAEConfig
    chn: CHNConfig
    pretraining: PretrainingConfig
    metatraining: MetaTrainingConfig
    maml: MAMLConfig = MAMLConfig()

    @field_validator("maml")
    @classmethod
    def _leaves_epochs_to_the_method(cls, maml: MAMLConfig) -> MAMLConfig:
        """Refuse settings that a method's name and a split determine."""
        if determined := maml.model_fields_set & {"epochs", "seed"}:
            raise ValueError(
                f"{sorted(determined)[0]} cannot be set: a method's name has the epochs, such as maml-5, and "
                "a split the seed"
            )
        return maml

    def benchmark(self, methods: tuple[str, ...], splits: int, seed: int, by: str | None) -> BenchmarkConfig:
        """Return the settings of a benchmark of these methods."""
        return BenchmarkConfig(
            methods=methods,
            splits=splits,
            seed=seed,
            by=by,
            test_rows=0,  # the paper has no test of new rows
            test_share=self.test_share,
            meta_share=self.meta_share,
            backbone=self.backbone,
            pretraining=self.pretraining,
            metatraining=self.metatraining,
            adapters={
                "chn": self.chn.model_dump(mode="json", exclude={"name"}),
                "maml": self.maml.model_dump(mode="json", exclude={"name", "epochs", "seed"}),
            },
        )

    def quick(self) -> Preset:
        """Return the preset with few epochs, to check that everything runs."""
        return self.revised(
            pretraining=self.pretraining.revised(epochs=3, steps=None, batch_size=64),
            metatraining=self.metatraining.revised(epochs=2, steps=None),
        )


def _paper(
    epochs: int, batch_size: int, items: int, learning_rate: float, decay: float
) -> dict[str, float | int | None]:
    """Return settings of training as in the paper: constant learning rate, no early stopping.

    The paper's epochs go over ``items``, the rows or the meta-train features of its table. A table of
    another size is trained for the same number of gradient steps.
    """
    return {
        "epochs": epochs,
        "steps": epochs * math.ceil(items / batch_size),
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": decay,
        "min_steps": 1,
        "patience": None,
    }


def _paper_backbone(embedding: int, latent: int, layers: tuple[int, ...]) -> PVAEConfig:
    return PVAEConfig(
        embedding=embedding,
        set_size=30,
        pooling="sum",
        encoder_layers=layers,
        latent=latent,
        decoder_layers=layers,
        kl_weight=1.0,
        max_drop_rate=1.0,
    )


def _tuned_backbone(latent: int, kl_weight: float) -> PVAEConfig:
    return PVAEConfig(
        embedding=50,
        set_size=64,
        pooling="root",
        encoder_layers=(200,),
        latent=latent,
        decoder_layers=(200,),
        kl_weight=kl_weight,
        max_drop_rate=1.0,
    )


def _tuned_pretraining(batch_size: int, learning_rate: float) -> PretrainingConfig:
    return PretrainingConfig(
        epochs=200,
        batch_size=batch_size,
        min_steps=8,
        learning_rate=learning_rate,
        weight_decay=1e-5,
        patience=20,
        validation_share=0.05,
    )


_TUNED_CHN = CHNConfig(
    embedding=50,
    encoding=50,
    context_layers=(128,),
    metadata_encoding=20,
    metadata_layers=(32,),
    parameter_layers=(256, 256),
)

_TUNED_METATRAINING = MetaTrainingConfig(
    epochs=300,
    batch_size=64,
    min_steps=8,
    learning_rate=5e-4,
    weight_decay=1e-4,
    patience=50,
    validation_share=0.1,
)

# The paper trains, meta-trains and meta-tests on 60, 30 and 10 % of the features; neuropathic 50, 30, 20.
_LARGE = {"test_share": 0.1, "meta_share": 1 / 3}

_NEUROPATHIC = {"test_share": 0.2, "meta_share": 3 / 8}

# The tables of the paper are 8,094 × 5,660, 1,000 × 82 and 6,797 × 4,792; 30 % of the features meta-train.
PAPER: dict[str, Preset] = {
    "movielens": Preset(
        name="paper",
        **_LARGE,
        backbone=_paper_backbone(50, 150, (200,)),
        chn=CHNConfig(
            embedding=50,
            encoding=50,
            context_layers=(128,),
            metadata_encoding=5,
            metadata_layers=(10,),
            parameter_layers=(256, 256, 256),
        ),
        pretraining=PretrainingConfig(**_paper(200, 1000, 8094, 1e-3, 0.0), validation_share=0.0),
        metatraining=MetaTrainingConfig(**_paper(100, 256, 1698, 1e-4, 1e-3), validation_share=0.0),
    ),
    "neuropathic": Preset(
        name="paper",
        **_NEUROPATHIC,
        backbone=_paper_backbone(30, 20, (30,)),
        chn=CHNConfig(embedding=25, encoding=25, context_layers=(50,), parameter_layers=(64, 64)),
        pretraining=PretrainingConfig(**_paper(1000, 1000, 1000, 1e-2, 0.0), validation_share=0.0),
        metatraining=MetaTrainingConfig(**_paper(300, 128, 25, 1e-3, 1e-3), validation_share=0.0),
    ),
    "elearning": Preset(
        name="paper",
        **_LARGE,
        backbone=_paper_backbone(50, 150, (200,)),
        chn=CHNConfig(
            embedding=50,
            encoding=50,
            context_layers=(50,),
            metadata_encoding=20,
            metadata_layers=(20,),
            parameter_layers=(50, 100, 150),
        ),
        pretraining=PretrainingConfig(**_paper(50, 1000, 6797, 1e-3, 0.0), validation_share=0.0),
        metatraining=MetaTrainingConfig(**_paper(20, 128, 1438, 1e-3, 1e-3), validation_share=0.0),
    ),
}

# Chosen on splits with seeds 100 to 102; reports use seeds from 0 up. Every value is written here, so that a
# change of the library's defaults does not change a preset.
TUNED: dict[str, Preset] = {
    "movielens": Preset(
        name="tuned",
        **_LARGE,
        backbone=_tuned_backbone(latent=64, kl_weight=0.02),
        chn=_TUNED_CHN,
        pretraining=_tuned_pretraining(256, 2e-3),
        metatraining=_TUNED_METATRAINING,
    ),
    # No early stopping: a tenth of about 24 meta-train labels is too few to validate on.
    "neuropathic": PAPER["neuropathic"].revised(
        name="tuned",
        backbone=PAPER["neuropathic"].backbone.revised(pooling="root", kl_weight=0.5),
        pretraining=_tuned_pretraining(128, 3e-3),
        metatraining=PAPER["neuropathic"].metatraining.revised(min_steps=4, validation_share=0.1),
    ),
    "elearning": Preset(
        name="tuned",
        **_LARGE,
        backbone=_tuned_backbone(latent=64, kl_weight=0.05),
        chn=_TUNED_CHN,
        pretraining=_tuned_pretraining(256, 2e-3),
        metatraining=_TUNED_METATRAINING,
    ),
}

PRESETS = {"paper": PAPER, "tuned": TUNED}


def preset(name: str, dataset: str) -> Preset:
    """Return the preset with this name for a data set.

    >>> preset("paper", "neuropathic").backbone.latent
    20
    >>> preset("papr", "neuropathic")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown preset 'papr'; did you mean 'paper'?
    """
    if name not in PRESETS:
        raise UnknownNameError(f"unknown preset {name!r}{did_you_mean(name, PRESETS)}")
    return PRESETS[name][dataset]


def read_presets(path: Path, based_on: str) -> dict[str, Preset]:
    """Read changes to a preset from a TOML file, and return the changed presets by data set.

    Each table of the file belongs to a data set. Its keys are those of ``Preset``; a key that is not in the
    file has the value of the preset ``based_on``::

        [elearning.metatraining]
        steps = 480

        [elearning.chn]
        parameter_layers = [100, 100]

    The name of the presets is the file's name without its ending.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the presets {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not a TOML file: {error}") from None
    presets = {}
    for dataset, changes in content.items():
        if dataset not in PAPER or not isinstance(changes, dict):
            hint = did_you_mean(dataset, PAPER) or f"; there are {', '.join(PAPER)}"
            raise UnknownNameError(f"{str(path)!r}: {dataset!r} is not the table of a data set{hint}")
        try:
            presets[dataset] = _revise(preset(based_on, dataset), {**changes, "name": path.stem})
        except InputError as error:
            raise InputError(f"{str(path)!r}, [{dataset}]: {error}") from None
    if not presets:
        raise InputError(f"{str(path)!r} is empty; write a table such as [{next(iter(PAPER))}.pretraining]")
    return presets


def _revise(config: _Settings, changes: dict[str, Any]) -> _Settings:
    """Return settings with changes, in which a table changes only some keys of a group of settings."""
    values = {}
    for key, value in changes.items():
        group = getattr(config, key, None)
        values[key] = (
            _revise(group, value) if isinstance(group, Config) and isinstance(value, dict) else value
        )
    return config.revised(**values)


MAML_EPOCHS = ("maml-0", "maml-1", "maml-3", "maml-5", "maml-10")

NEIGHBOURS = ("knn-1", "knn-5", "knn-10")

EPOCHS = (0, 1, 5, 10, 25)

BASELINES = ("random", "mean", "mean-head", "mean-head-matching", "knn-10", "train-10")


@dataclass(frozen=True)
class Study:
    """One benchmark: a data set and the way to split its features."""

    dataset: str
    by: str | None = None  # metadata column to split by, from old to new; None: at random


STUDIES = {
    "movielens": Study("movielens"),
    "neuropathic": Study("neuropathic"),
    "elearning": Study("elearning"),
    "chronological": Study("movielens", by="year"),
}


@dataclass(frozen=True)
class Experiment:
    """One figure or table. It shows only the best of the methods ``best_of``, as in the paper."""

    title: str
    methods: dict[str, tuple[str, ...]]  # by study
    best_of: tuple[str, ...] = ()
    shots: tuple[int, ...] | None = None  # the numbers of shots to show; None: all
    shows: Literal["shots", "times", "epochs"] = "shots"  # metrics or times by shots, or metrics by epochs

    @property
    def all_methods(self) -> dict[str, tuple[str, ...]]:
        """The methods to run, by study."""
        return {study: (*methods, *self.best_of) for study, methods in self.methods.items()}


def _kshot(data: str, study: str, *without: str) -> Experiment:
    methods = tuple(method for method in (*BASELINES, "chn") if method not in without)
    return Experiment(f"k-shot performance on {data} (Figure 5)", {study: methods}, best_of=MAML_EPOCHS[1:])


def _on_all_three(title: str, methods: tuple[str, ...]) -> Experiment:
    return Experiment(title, dict.fromkeys(("movielens", "neuropathic", "elearning"), methods))


EXPERIMENTS = {
    "kshot-movielens": _kshot("MovieLens-1M", "movielens"),
    "kshot-neuropathic": _kshot("neuropathic pain", "neuropathic", "mean-head-matching"),  # no metadata
    "kshot-elearning": _kshot("e-learning", "elearning"),
    "timings": Experiment(
        "Time to produce a head (Table 1)",
        {"elearning": ("knn-10", "train-1", "train-5", "train-10", "maml-10", "chn")},
        shots=(1, 4, 16),
        shows="times",
    ),
    "chronological": Experiment(
        "k-shot performance on MovieLens-1M, features split by year from old to new",
        {"chronological": (*BASELINES, "chn")},
        best_of=MAML_EPOCHS[1:],
    ),
    "maml-epochs": _on_all_three("MAML by epochs of fine-tuning", MAML_EPOCHS),
    "knn-neighbours": _on_all_three("Nearest heads by number of neighbours", NEIGHBOURS),
    "finetuning": Experiment(
        "Fine-tuning from a random head and from the hypernetwork's, on e-learning",
        {"elearning": tuple(f"{start}-{n}" for start in ("train", "chn-train") for n in EPOCHS)},
        shots=(0, 1, 4, 8, 16, 32),
        shows="epochs",
    ),
}

ALL = "all"


def experiments_named(name: str) -> dict[str, Experiment]:
    """Return the experiment with this name, or all experiments.

    >>> list(experiments_named("timings"))
    ['timings']
    >>> experiments_named("timing")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown experiment 'timing'; did you mean 'timings'?
    """
    if name == ALL:
        return dict(EXPERIMENTS)
    if name not in EXPERIMENTS:
        names = [*EXPERIMENTS, ALL]
        hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
        raise UnknownNameError(f"unknown experiment {name!r}{hint}")
    return {name: EXPERIMENTS[name]}


def methods_of(experiments: dict[str, Experiment]) -> dict[str, tuple[str, ...]]:
    """Return the methods that ``experiments`` need, each once, by study."""
    by_study: dict[str, dict[str, None]] = {}
    for experiment in experiments.values():
        for study, methods in experiment.all_methods.items():
            by_study.setdefault(study, {}).update(dict.fromkeys(methods))
    return {study: tuple(methods) for study, methods in by_study.items()}
