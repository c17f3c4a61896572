"""Cells whose feature does not apply to their row are neither observed nor predicted."""

import numpy as np
import pandas as pd
import pytest
from tests.states import state_of

from headstart import Headstart, Table
from headstart.errors import InputError
from headstart.model.cell_predictions import predict_one_cell
from headstart.model.saving.export import long_form
from headstart.table.not_applicable import NotApplicable

ROWS = 40


def frame():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"row": [f"r{i}" for i in range(ROWS)]})
    for k in range(4):
        table[f"q{k}"] = rng.integers(1, 6, ROWS).astype(float)
    table["job"] = rng.choice(["office", "field", "none"], ROWS)
    table["size"] = pd.Categorical(rng.choice(["lo", "mid", "hi"], ROWS), ["lo", "mid", "hi"], ordered=True)
    table.loc[:4, "q0"] = -8
    table.loc[5:7, "q0"] = np.nan
    table["job"] = table["job"].mask(table.index < 3, "n/a")
    table["size"] = table["size"].astype(str).mask(table.index == 1, "n/a")
    return table


KINDS = {None: "rating:1:5", "job": "category", "size": "ordinal:lo,mid,hi"}


@pytest.fixture(scope="module")
def model():
    table = Table.read(frame(), kinds=KINDS, not_applicable=[-8, "n/a"])
    return Headstart(random_state=0, quiet=True).fit(table)


def test_codes_are_read_apart_from_missing_values():
    table = Table.read(frame(), kinds=KINDS, not_applicable=[-8, "n/a"])
    assert len(table.not_applicable) == 5 + 3 + 1
    assert "9 cells not applicable" in repr(table)
    assert any("9 cells read as not applicable: -8, 'n/a'" in note for note in table.notes)
    assert table.observations_of("q0").keys() == {f"r{i}" for i in range(8, ROWS)}
    with pytest.raises(InputError, match="not_applicable= takes numbers and texts"):
        Table.read(frame(), not_applicable=[None])


def test_long_form_and_cells_with_a_value(tmp_path):
    lines = [f"r{i},q{k},{1 + (i + k) % 5}" for i in range(20) for k in range(3)]
    (tmp_path / "t.csv").write_text("\n".join(["row,feature,value", "r0,q9,n/a", "r1,q0,n/a", *lines]))
    table = Table.read(tmp_path / "t.csv", not_applicable="n/a")
    assert list(table.not_applicable) == [("r0", "q9")]  # the other cell has a value, too
    assert table.shape == (20, 4)


def test_a_missing_name_is_reported_with_its_record():
    long = pd.DataFrame({"row": ["a", "b", None], "feature": "f", "value": [1.0, 2.0, -8.0]})
    with pytest.raises(InputError, match="record 3: the name of the row is missing"):
        Table.read(long, not_applicable=-8)


def test_removed_cells_leave_the_others_in_their_order():
    cells = [(f"r{row}", f"q{9 - feature}") for feature in range(5) for row in range(3)]
    removed = [("r0", "q9"), ("r1", "q9"), ("r2", "q9"), ("r1", "q7"), ("r1", "q0")]
    left = NotApplicable(cells).without(removed)
    assert list(left) == [cell for cell in cells if cell[1] != "q9" and cell != ("r1", "q7")]
    assert left == NotApplicable(left)
    assert left.without([("r0", "q9")]) is left


def test_codes_among_labels_may_be_numbers():
    values = ["good", "bad", "-9", "worse"] * 5
    long = pd.DataFrame({"row": range(20), "feature": "f", "value": values})
    assert Table.read(long, missing=-9).answers == 15
    assert len(Table.read(long, not_applicable=-9).not_applicable) == 5


def test_such_cells_are_not_predicted(model):
    prediction = model.predict(["r0", "r1", "r5"], ["q0", "q1", "job", "size"])
    assert np.isnan(prediction.mean[:2, 0]).all()
    assert np.isfinite(prediction.mean[2, 0])  # only missing
    assert np.isfinite(prediction.mean[:, 1]).all()
    assert np.isnan(np.stack(prediction.interval())[:, :2, 0]).all()
    assert prediction.labels("job")[:2] == ["not applicable"] * 2
    assert prediction.labels("size")[1] == "not applicable"
    assert np.isnan(prediction.probabilities("size")[1]).all()
    assert np.isnan(prediction.quantile(0.5)[0, 0])
    assert "not applicable" in repr(prediction)
    assert np.isnan(model.predict(["r0"], ["job=field"]).mean).all()
    assert np.isnan(predict_one_cell(state_of(model), " r0", "q0", 0.9)).all()  # names have no outer blanks


def test_rankings_draws_and_imputations_leave_them_out(model):
    ranked = model.recommend("r0", features=["q0", "q1"], exclude_observed=False)
    assert [item.name for item in ranked] == ["q1"]
    assert "r0" not in [item.name for item in model.audience("q0", n=ROWS, exclude_observed=False)]
    assert set(model.suggest("q0", n=8)) == {"r5", "r6", "r7"}
    assert np.isnan(model.sample(["r0"], ["q0", "job", "size"], n=3)[:, 0, :2]).all()
    filled = model.impute(m=2)[0]
    assert filled["q0"].isna().sum() == 5
    assert filled["job"].isna().sum() == 3
    assert filled["size"].isna().sum() == 1


def test_they_are_saved_exported_and_shown(model, tmp_path):
    model.save(tmp_path / "m")
    loaded = Headstart.load(tmp_path / "m")
    assert loaded.table().not_applicable == model.table().not_applicable
    assert "not applicable: 9 cells" in str(loaded.info)
    assert np.isnan(loaded.predict(["r0"], ["q0"]).mean).all()
    with pytest.raises(InputError, match="feature 'q0' does not apply to row 'r0'"):
        loaded.explain("r0", "q0")
    again = Table.read(long_form(loaded.table()), kinds=KINDS, not_applicable="not applicable")
    assert again.not_applicable == model.table().not_applicable
    assert again.observations_of("q0") == loaded.table().observations_of("q0")


def test_an_observation_makes_a_cell_applicable(model, tmp_path):
    model.save(tmp_path / "m")
    changed = Headstart.load(tmp_path / "m")
    before = len(changed.table().not_applicable)
    changed.observe([("r4", "q0", 3)])
    assert len(changed.table().not_applicable) == before - 1
    assert np.isfinite(changed.predict(["r4"], ["q0"]).mean).all()
    changed.remove_row("r3")
    assert len(changed.table().not_applicable) == before - 2
    changed.remove_feature("job")
    assert len(changed.table().not_applicable) == before - 5


def test_parts_of_a_table_have_only_their_own_cells(model, tmp_path):
    table = model.table()
    assert len(table.without_features(["q0"]).not_applicable) == 4
    assert len(table.with_features(["job=field", "q1"]).not_applicable) == 3
    assert len(table.with_rows(np.arange(ROWS) > 1).not_applicable) == 3 + 1
    assert len(table.as_clicks().not_applicable) == 5 + 1
    Headstart(adapter="bayes", quiet=True).fit(table.without_features(["q0"])).save(tmp_path / "m")


def test_a_category_without_any_level_has_no_cells(tmp_path):
    wide = frame().assign(empty="n/a")
    table = Table.read(wide, kinds=KINDS | {"empty": "category"}, not_applicable=[-8, "n/a"])
    assert table.not_applicable == Table.read(frame(), kinds=KINDS, not_applicable=[-8, "n/a"]).not_applicable


def test_they_keep_their_cells_under_new_names(model, tmp_path):
    model.save(tmp_path / "m")
    renamed = Headstart.load(tmp_path / "m")
    renamed.rename_feature("job", "work")
    renamed.rename_feature("q0", "first")
    renamed.rename_row("r1", "one")
    renamed.save(tmp_path / "m")
    for each in (renamed, Headstart.load(tmp_path / "m")):
        assert len(each.table().not_applicable) == 9
        assert np.isnan(each.predict(["one"], ["first", "work=field", "size"]).mean).all()
