"""Parameters as scikit-learn's tools expect them."""

from __future__ import annotations

import pytest
from sklearn.base import clone

from headstart import Headstart, UnknownNameError
from headstart.adapters.baselines import NearestHeadsConfig


def test_scikit_learn_clones_a_model() -> None:
    model = Headstart(adapter=NearestHeadsConfig(neighbours=3), metatraining={"epochs": 2}, random_state=7)
    copy = clone(model)
    assert copy is not model
    assert type(copy) is Headstart
    assert copy.get_params() == model.get_params()
    assert copy.metatraining is not model.metatraining


def test_parameters_are_set_by_name() -> None:
    model = Headstart()
    assert model.set_params(adapter="mean", quiet=True) is model
    assert model.get_params() == Headstart(adapter="mean", quiet=True).get_params()
    assert list(model.get_params(deep=False)) == [
        "backbone", "adapter", "pretraining", "metatraining", "meta_share", "random_state", "quiet",
        "half_life", "device",
    ]  # fmt: skip


def test_an_unknown_parameter_is_refused_and_nothing_is_set() -> None:
    model = Headstart()
    with pytest.raises(UnknownNameError, match="Headstart has no parameter 'adaptr'; did you mean 'adapter'"):
        model.set_params(quiet=True, adaptr="mean")
    assert model.quiet is False


def test_a_model_shows_what_differs_from_the_defaults() -> None:
    assert repr(Headstart()) == "Headstart()"
    assert repr(Headstart(adapter="mean", random_state=3)) == "Headstart(adapter='mean', random_state=3)"
