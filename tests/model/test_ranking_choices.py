"""Criteria, filters and titles of recommend() and audience()."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

from headstart import Headstart, InputError, Table
from headstart.datasets import synthetic_clicks, synthetic_ratings


@pytest.fixture(scope="module")
def model() -> Headstart:
    table = synthetic_ratings(rows=60, features=24, density=0.4)
    films = table.metadata.append_column("title", pa.array([f"The {name}" for name in table.features]))
    people = pa.table(
        {"row": list(table.rows), "group": [("a", "b")[int(name.split()[1]) % 2] for name in table.rows]}
    )
    lines = {
        "row": [table.rows[int(i)] for i in table.row_index],
        "feature": [table.features[int(j)] for j in table.feature_index],
        "value": table.values,
    }
    films = films.add_column(0, "feature", pa.array(list(table.features)))
    read = Table.read(pa.table(lines), metadata=films, row_metadata=people, kinds="rating:1:5")
    fitted = Headstart(adapter="bayes", quiet=True).fit(read)
    fitted.add_feature("new", {"genres": ["Drama"]})
    return fitted


def test_lower_and_upper_are_quantiles(model):
    for by, quantile in (("lower", 0.1), ("upper", 0.9)):
        ranking = model.recommend("row 1", n=25, by=by, exclude_observed=False)
        assert ranking.by == by
        assert list(ranking.score) == sorted(ranking.score, reverse=True)
        expected = model.predict(rows=["row 1"], features=list(ranking.names)).quantile(quantile)[0]
        inside = (ranking.score > 1) & (ranking.score < 5)
        np.testing.assert_allclose(ranking.score[inside], expected[inside], atol=2e-3)
    lower = model.recommend("row 1", n=25, by="lower", exclude_observed=False).names
    upper = model.recommend("row 1", n=25, by="upper", exclude_observed=False).names
    assert lower.index("new") > upper.index("new")  # nothing is known of it


def test_samples_have_the_mean_and_the_uncertainty_of_predictions(model):
    rankings = [model.recommend("row 1", n=25, by="sample", random_state=seed) for seed in range(300)]
    by_name = {name: [] for name in rankings[0].names}
    for ranking in rankings:
        for line in ranking:
            by_name[line.name].append(line.score)
    mean = dict(zip(rankings[0].names, rankings[0].mean, strict=True))
    spread = {name: np.std(draws) for name, draws in by_name.items()}
    for name, draws in by_name.items():
        if 1 < mean[name] < 5:
            assert np.mean(draws) == pytest.approx(mean[name], abs=5 * spread[name] / 300**0.5)
    assert spread["new"] == max(spread.values())
    again = model.recommend("row 1", n=25, by="sample", random_state=7)
    assert again.names == rankings[7].names
    assert rankings[0].names != rankings[1].names


def test_a_sample_does_not_depend_on_the_other_candidates(model):
    everything = {
        line.name: line.score for line in model.recommend("row 1", n=25, by="sample", random_state=3)
    }
    some = model.recommend("row 1", n=3, by="sample", random_state=3, features=list(everything)[3:8])
    for line in some:
        assert line.score == pytest.approx(everything[line.name], abs=1e-9)
    people = model.audience("new", n=60, by="sample", random_state=3)
    alone = model.audience("new", by="sample", random_state=3, rows=[people[5].name])
    assert alone[0].score == pytest.approx(people[5].score, abs=1e-9)


def test_lift_is_free_of_popularity(model):
    lift = model.recommend("row 1", n=25, by="lift", exclude_observed=False)
    mean = model.recommend("row 1", n=25, exclude_observed=False)
    score = {line.name: line.score for line in mean}
    rest = np.array([score[line.name] - line.score for line in lift])
    usual = np.array(
        [np.mean(model.audience(name, n=60, exclude_observed=False).score) for name in lift.names]
    )
    np.testing.assert_allclose(rest, usual, atol=1e-3)


def test_features_and_rows_can_be_left_out_and_filtered(model):
    best = model.recommend("row 1", n=3).names
    assert model.recommend("row 1", n=2, exclude=[best[0]]).names == best[1:]
    dramas = model.recommend("row 1", n=25, where={"genres": "Drama"})
    assert 0 < len(dramas) < 20
    assert all("Drama" in model.feature(name).metadata["genres"] for name in dramas.names)
    either = model.recommend("row 1", n=25, where={"genres": ["Drama", "Comedy"]})
    assert set(dramas.names) < set(either.names)
    people = model.audience("new", n=60, where={"group": "a"})
    assert {int(name.split()[1]) % 2 for name in people.names} == {0}
    first = people[0].name
    assert first not in model.audience("new", n=60, exclude=[first]).names


def test_titles_are_shown_beside_names(model):
    ranking = model.recommend("row 1", n=3)
    number = ranking.names[0].split()[1]
    assert ranking.titles is not None
    assert ranking.titles[0] == f"The film {number}"
    assert f"The film {number}" in str(ranking)
    assert ranking.to_arrow().column_names[:2] == ["feature", "title"]
    assert "The film" in ranking._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "lowr"}, "by= must be one of .*did you mean 'lower'"),
        ({"by": "sample", "random_state": -1}, "random_state= must be a whole number"),
        ({"where": {"genre": "Drama"}}, "no metadata column 'genre'.*did you mean 'genres'"),
        ({"exclude": ["film 99"]}, "film 99"),
    ],
)
def test_bad_choices_are_refused(model, options, message):
    with pytest.raises(InputError, match=message):
        model.recommend("row 1", **options)


@pytest.mark.parametrize("by", ["mean", "lower", "upper", "sample", "lift"])
def test_clicks_are_ranked_by_every_criterion(by):
    model = Headstart(quiet=True).fit(synthetic_clicks(60, 20, density=0.2))
    ranking = model.recommend("row 0", n=5, by=by)
    assert len(ranking) == 5
    assert list(ranking.score) == sorted(ranking.score, reverse=True)
    assert ((ranking.mean >= 0) & (ranking.mean <= 1)).all()


def test_ratings_as_clicks():
    table = synthetic_ratings(rows=60, features=20, density=0.4)
    clicks = table.as_clicks(at_least=4)
    assert len(clicks) == int((table.values >= 4).sum())
    assert clicks.rows == table.rows
    assert len(table.as_clicks()) == len(table)
    with pytest.raises(InputError, match="no value of the table is at least 6"):
        table.as_clicks(6)


def test_relevance_is_the_probability_of_a_high_value_times_popularity() -> None:
    table = synthetic_ratings(rows=80, features=30, density=0.4)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    row = model.rows[0]
    ranking = model.recommend(row, n=30, by="relevance", exclude_observed=False)
    prediction = model.predict([row], list(ranking.names))
    shots = np.array([model.feature(name).shots for name in ranking.names])
    above = ndtr((prediction.mean[0] - 4) / prediction.std[0])  # 4 is three quarters of the way from 1 to 5
    expected = above * (shots + 1) / (len(model.rows) + 1)
    np.testing.assert_allclose(ranking.score, expected, rtol=1e-3, atol=1e-4)
    assert (np.diff(ranking.score) <= 1e-12).all()
    assert model.recommend(row).by == "mean"  # a chosen adapter is not judged


def test_rows_that_choose_popular_features_are_recommended_by_relevance(tmp_path: Path) -> None:
    """Ratings that say little and popularity that says much: the fit finds it, and the folder keeps it."""
    rng = np.random.default_rng(0)
    popularity = np.exp(rng.normal(0, 1.5, 60))
    chances = np.minimum(0.95, 0.25 * popularity / popularity.mean())
    cells = [(i, j) for i in range(120) for j in range(60) if rng.random() < chances[j]]
    lines = {
        "row": [f"u{i}" for i, _ in cells],
        "feature": [f"f{j}" for _, j in cells],
        "value": rng.integers(1, 6, len(cells)).astype(float),
    }
    model = Headstart(quiet=True).fit(pa.table(lines), kinds="rating:1:5")
    assert model.recommend("u1").by == "relevance"
    assert model.recommend("u1", by="mean").by == "mean"
    assert model.audience("f1").by == "mean"
    model.save(tmp_path / "m")
    assert Headstart.load(tmp_path / "m").recommend("u1").by == "relevance"


def test_relevance_needs_a_common_order_of_preference() -> None:
    frame = pa.table({"row": list("abcdef") * 4, "feature": [f for f in "wxyz" for _ in range(6)],
                      "value": np.random.default_rng(0).normal(size=24)})  # fmt: skip
    model = Headstart(adapter="bayes", quiet=True).fit(frame, kinds="real")
    with pytest.raises(InputError, match="is for ratings, binary features and clicks"):
        model.recommend("a", by="relevance", exclude_observed=False)
