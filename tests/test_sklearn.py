"""The imputer keeps scikit-learn's contract."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from headstart.errors import InputError
from headstart.sklearn import HeadstartImputer


@parametrize_with_checks([HeadstartImputer(adapter="bayes")])
def test_contract_of_scikit_learn(estimator: HeadstartImputer, check: object) -> None:
    check(estimator)


def holes(rows: int = 80, features: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Complete data of two factors, and the same with a quarter of the cells missing."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, 2)) @ random.normal(size=(2, features)) + 0.2 * random.normal(
        size=(rows, features)
    )
    return values, np.where(random.random(values.shape) < 0.25, np.nan, values)


def test_arrays_are_filled_and_observed_cells_stay() -> None:
    values, seen = holes()
    before = seen.copy()
    filled = HeadstartImputer(adapter="bayes").fit_transform(seen)
    np.testing.assert_array_equal(seen, before)
    missing = np.isnan(seen)
    np.testing.assert_array_equal(filled[~missing], seen[~missing])
    means = np.where(missing, np.nanmean(seen, 0), seen)
    assert np.abs(filled - values)[missing].mean() < 0.5 * np.abs(means - values)[missing].mean()


def test_frames_and_set_output() -> None:
    _, seen = holes()
    frame = pd.DataFrame(seen, columns=[f"c{i}" for i in range(8)]).set_index(pd.Index(range(10, 90)))
    imputer = HeadstartImputer(adapter="bayes").set_output(transform="pandas")
    filled = imputer.fit_transform(frame)
    assert filled.columns.tolist() == frame.columns.tolist()
    assert filled.index.tolist() == frame.index.tolist()
    assert not filled.isna().any().any()
    assert imputer.get_feature_names_out().tolist() == frame.columns.tolist()
    np.testing.assert_allclose(filled.to_numpy(), HeadstartImputer(adapter="bayes").fit_transform(seen))
    with pytest.raises(ValueError, match="c7"):
        imputer.transform(frame.rename(columns={"c7": "other"}))


def test_mixed_kinds_and_strategies() -> None:
    values, seen = holes(rows=150)
    values[:, 0], seen[:, 0] = values[:, 0] > 0, np.where(np.isnan(seen[:, 0]), np.nan, values[:, 0] > 0)
    missing = np.isnan(seen)
    imputer = HeadstartImputer(adapter="bayes")
    mean = imputer.fit_transform(seen)
    assert imputer.model_.feature("x0").kind.name == "binary"
    assert imputer.model_.feature("x1").kind.name == "real"
    assert ((mean[:, 0] >= 0) & (mean[:, 0] <= 1)).all()
    median = HeadstartImputer(adapter="bayes", strategy="median").fit_transform(seen)
    assert set(np.unique(median[:, 0])) <= {0.0, 1.0}
    assert (median[missing[:, 0], 0] == values[missing[:, 0], 0]).mean() > 0.7
    one = HeadstartImputer(adapter="bayes", strategy="sample").fit_transform(seen)
    other = HeadstartImputer(adapter="bayes", strategy="sample", random_state=1).fit_transform(seen)
    assert set(np.unique(one[:, 0])) <= {0.0, 1.0}
    assert not np.allclose(one[missing], other[missing])
    given = HeadstartImputer(adapter="bayes", kinds={"x0": "real", None: "real"}).fit(seen)
    assert given.model_.feature("x0").kind.name == "real"


def test_rows_that_were_not_in_fit() -> None:
    values, seen = holes(rows=120)
    imputer = HeadstartImputer(adapter="bayes").fit(seen[:80])
    filled, missing = imputer.transform(seen[80:]), np.isnan(seen[80:])
    assert np.abs(filled - values[80:])[missing].mean() < 0.6 * np.abs(values).mean()
    one_by_one = np.concatenate([imputer.transform(row[None]) for row in seen[80:]])
    np.testing.assert_allclose(one_by_one, filled, rtol=1e-4, atol=1e-5)
    nothing = imputer.transform(np.full((2, 8), np.nan))
    assert np.isfinite(nothing).all()
    np.testing.assert_array_equal(nothing[0], nothing[1])


def test_pipelines_clones_and_searches() -> None:
    values, seen = holes()
    target = values.sum(1)
    pipeline = make_pipeline(HeadstartImputer(adapter="bayes"), LinearRegression())
    assert cross_val_score(pipeline, seen, target, cv=3).mean() > 0.8
    search = GridSearchCV(pipeline, {"headstartimputer__strategy": ["mean", "median"]}, cv=2)
    assert search.fit(seen, target).best_score_ > 0.7
    copy = clone(HeadstartImputer(kinds={"x1": "real"}, strategy="median"))
    assert copy.get_params()["strategy"] == "median"
    fitted = HeadstartImputer(adapter="bayes").fit(seen)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(seen), fitted.transform(seen))


def test_new_columns_are_new_features() -> None:
    values, seen = holes(rows=200, features=10)
    frame = pd.DataFrame(seen, columns=[f"c{i}" for i in range(10)])
    known = frame.drop(columns=["c3", "c7"])
    imputer = HeadstartImputer(adapter="bayes", new_features="add").fit(known[:120])
    later = frame[120:]
    filled = imputer.transform(later)
    assert filled.columns.tolist() == frame.columns.tolist()
    assert filled.index.tolist() == later.index.tolist()
    for name in ("c3", "c7"):
        missing = later[name].isna().to_numpy()
        error = np.abs(filled[name].to_numpy() - values[120:, int(name[1])])[missing].mean()
        assert error < 0.6 * np.abs(later[name].mean() - values[120:, int(name[1])])[missing].mean()
    np.testing.assert_allclose(filled[known.columns], imputer.transform(later[known.columns]), rtol=1e-5)
    assert "c3" not in imputer.model_.features  # the copy has it
    with pytest.raises(ValueError, match="unseen at fit time"):
        HeadstartImputer(adapter="bayes").fit(known).transform(frame)


def test_few_columns_get_means() -> None:
    seen = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, 8.0]])
    imputer = HeadstartImputer().fit(seen)
    assert imputer.model_ is None
    np.testing.assert_array_equal(imputer.transform(seen), [[1, 6], [3, 4], [2, 8]])


def test_bad_arguments() -> None:
    _, seen = holes()
    for wrong in ({"strategy": "mode"}, {"new_features": "ignore"}):
        with pytest.raises(InputError, match="must be one of"):
            HeadstartImputer(**wrong).fit(seen)
    with pytest.raises(ValueError, match="infinity"):
        HeadstartImputer().fit(np.where(np.isnan(seen), np.inf, seen))
    binary = HeadstartImputer(adapter="bayes", kinds={"x0": "binary"})
    with pytest.raises(InputError, match="0 or 1"):
        binary.fit(seen)


def test_scikit_learn_is_named_if_it_is_missing() -> None:
    code = "import sys; sys.modules['sklearn.base'] = None; import headstart.sklearn"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'headstart[sklearn]'" in result.stderr


def test_columns_of_many_factors_are_filled_well() -> None:
    """The default has enough factors for a dense table of few columns that are closely related."""
    random = np.random.default_rng(0)
    related = random.normal(size=(150, 6)) @ random.normal(size=(6, 9))
    seen = np.where(random.random(related.shape) < 0.15, np.nan, related)
    missing = np.isnan(seen)
    few, usual = HeadstartImputer(backbone={"name": "factorisation", "latent": 3}), HeadstartImputer()
    errors = [np.abs(imputer.fit_transform(seen) - related)[missing].mean() for imputer in (few, usual)]
    assert errors[1] < 0.7 * errors[0]


def test_constant_and_empty_columns_are_filled_without_warnings() -> None:
    random = np.random.default_rng(0)
    related = random.normal(size=(80, 3)) @ random.normal(size=(3, 8))
    columns = [related, np.full((80, 1), 0.1), np.full((80, 1), np.nan), np.full((80, 1), 1e9)]
    seen = np.where(random.random((80, 11)) < 0.15, np.nan, np.hstack(columns))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        filled = HeadstartImputer(adapter="bayes").fit_transform(seen)
    np.testing.assert_allclose(filled[:, [8, 10]], np.broadcast_to([0.1, 1e9], (80, 2)), rtol=0.01)
