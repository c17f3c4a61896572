"""Which features are alike: against predictions of all rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.model.conftest import CLOSED
from tests.model.test_ranking import mixed_table

from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart

Fresh = Callable[..., Headstart]


def test_similarity_is_the_correlation_of_predictions() -> None:
    model = Headstart(**CLOSED).fit(mixed_table("real"))
    mean = model.predict().mean
    at = model.features.index("f3")
    slow = np.corrcoef(mean.T)[at]
    order = [i for i in np.argsort(-slow, kind="stable") if i != at]
    found = model.similar("f3", 99)
    assert found.names == tuple(model.features[i] for i in order)
    np.testing.assert_allclose(found.similarity, slow[order], atol=1e-5)
    assert model.similar("f3", 2).names == found.names[:2]


def test_a_copy_is_most_alike_and_its_opposite_least(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    seen = model.feature("f3").observations
    model.add_features(
        {
            "copy": {"observations": seen, "metadata": model.feature("f3").metadata},
            "opposite": {"observations": {row: 6 - value for row, value in seen.items()}},
        }
    )
    found = model.similar("f3", 99)
    assert found.names[0] == "copy"
    assert found.similarity[0] > 0.999
    assert found.names[-1] == "opposite"
    assert found.similarity[-1] < 0
    model.observe_feature("copy", {"u1": 1})  # a listing that was laid over another
    assert "copy" in model.similar("f3", 3).names


def test_a_similarity_can_be_read_and_bad_questions_are_refused(fresh: Fresh) -> None:
    model = fresh("pvae", "chn")  # any model will do
    found = model.similar("f1", 3)
    assert repr(found).splitlines()[0] == "3 features similar to 'f1'"
    assert [name for name, _ in found] == list(found.names)
    assert found.to_arrow().column_names == ["feature", "similarity"]
    assert len(found.to_pandas()) == len(found) == 3
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'"):
        model.similar("f99")
    with pytest.raises(InputError, match="whole number n from 1 up"):
        model.similar("f1", 0)
