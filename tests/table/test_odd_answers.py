"""Answers as people record them: mixed spellings, codes among labels, dates, categories of pandas."""

import numpy as np
import pandas as pd
import pytest

from headstart import Headstart
from headstart.errors import InputError
from headstart.table.table import Table


def long(values):
    n = len(values)
    return pd.DataFrame(
        {"row": [f"r{i // 2}" for i in range(n)], "feature": [f"f{i % 2}" for i in range(n)], "value": values}
    )


def wide(**columns):
    return pd.DataFrame({"row": [f"r{i}" for i in range(len(next(iter(columns.values()))))], **columns})


def test_spellings_of_yes_and_no_are_one_label():
    table = Table.read(long(["Yes", "no", "NO", "YES", "yes", "No"] * 2))
    assert table.kinds[0].option == "binary:no,Yes"
    assert any("read as one label: 'NO', 'YES', 'yes', 'No'" in note for note in table.notes)
    assert table.values.tolist() == [1, 0, 0, 1, 1, 0] * 2
    assert Table.read(long(["Y", "n", "N", "y"] * 3)).kinds[0].option == "binary:n,Y"


def test_other_labels_that_differ_in_case_only_are_named():
    table = Table.read(long(["A", "b", "a", "B"] * 3))
    assert any("are different levels: 'A', 'B', 'a', 'b'" in note for note in table.notes)


def test_labels_are_not_added_up():
    twice = pd.concat([long(["A", "B", "C", "A"]), long(["B", "B", "C", "A"])])
    with pytest.raises(InputError, match="observed twice, as 'A' and 'B'; correct the data"):
        Table.read(twice, duplicates="sum")


def test_categories_of_booleans():
    table = Table.read(wide(a=pd.Categorical([True, False] * 4), b=pd.Categorical([False, True] * 4)))
    assert {kind.name for kind in table.kinds} == {"binary"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["2020-01-02", "2020-01-03", "2020-01-04"] * 4, "has dates, such as '2020-01-02'"),
        (["good", "bad", "nan"] * 4, r"'nan' is neither a number nor a label; .* use missing=\['nan'\]"),
        (["x"] * 8, "every value is 'x', .* use kinds='click'"),
    ],
)
def test_texts_that_are_no_labels(values, message):
    with pytest.raises(InputError, match=message):
        Table.read(long(values))


def test_nan_as_a_code_for_missing_values():
    assert len(Table.read(long(["good", "bad", "nan", "worse"] * 4), missing="nan")) > 0


def test_values_that_do_not_fit_show_the_kind_as_it_was_given():
    counts = long([1, 2, 3, 4, 5, -6])
    with pytest.raises(InputError, match=r"-6 must be .* \(the feature's kind is count\)"):
        Table.read(counts, kinds="count")
    twice = pd.concat([counts.assign(value=1), counts.assign(value=2)])
    with pytest.raises(InputError, match="duplicates='mean' averages values"):
        Table.read(twice, kinds="count", duplicates="mean")


def test_limits_with_a_decimal_comma(tmp_path):
    lines = [f"r{i};f;{'<0,1' if i % 4 == 0 else f'{i},5'}" for i in range(20)]
    (tmp_path / "t.csv").write_text("row;feature;value\n" + "\n".join(lines))
    table = Table.read(tmp_path / "t.csv", decimal=",")
    assert table.notes[0] == "5 censored values, such as <0.1, read as their expected values"
    assert (table.values[table.weights < 1] < 0.1).all()


def test_thousands_are_not_taken_for_decimals_without_a_word(tmp_path):
    (tmp_path / "t.csv").write_text("row;feature;value\na;x;1,296\n")
    with pytest.raises(InputError, match=r"use decimal=',', or, if ',' separates thousands, write numbers"):
        Table.read(tmp_path / "t.csv")


def test_many_levels_are_counted():
    labels = [f"L{i % 30:02}" for i in range(300)]
    table = Table.read(long(labels), kinds="category")
    assert "category of 15 levels" not in repr(table)  # up to 20 are listed
    everywhere = pd.DataFrame({"row": range(300), "feature": "f", "value": labels})
    assert "category of 30 levels" in repr(Table.read(everywhere))
    assert "(kinds='category')" in Table.read(everywhere).notes[0]


def test_ordered_levels_that_mean_no_answer():
    rng = np.random.default_rng(0)
    levels = ["low", "high", "refused"]
    frame = wide(**{f"q{k}": pd.Categorical(rng.choice(levels, 20), levels, ordered=True) for k in range(3)})
    with pytest.raises(InputError, match=r"levels contain 'refused', .* use missing=\['refused'\]"):
        Table.read(frame)
    assert Table.read(frame, missing="refused").kinds[0].option == "ordinal:low,high"
    assert Table.read(frame, kinds="ordinal:low,high,refused").kinds[0].option == "ordinal:low,high,refused"


def test_codes_for_missing_values_of_a_survey_file(tmp_path):
    pyreadstat = pytest.importorskip("pyreadstat")
    rng = np.random.default_rng(0)
    names = ["q0", "q1"]
    frame = wide(**{name: rng.choice([1.0, 2, 3, 4], 30) for name in names})
    labels = {name: {1: "disagree", 2: "neutral", 3: "agree", 4: "refused"} for name in names}
    measure = dict.fromkeys(names, "ordinal")
    pyreadstat.write_sav(
        frame, str(tmp_path / "t.sav"), variable_value_labels=labels, variable_measure=measure
    )
    table = Table.read(tmp_path / "t.sav", missing=[4])
    assert table.kinds[0].option == "ordinal:disagree,neutral,agree"
    assert len(table) == int((frame[names] != 4).to_numpy().sum())
    pyreadstat.write_dta(frame, str(tmp_path / "t.dta"), variable_value_labels=labels)
    assert any("use missing=[4]" in note for note in Table.read(tmp_path / "t.dta").notes)


def test_new_ordinal_feature_with_given_levels():
    rng = np.random.default_rng(0)
    levels = ["lo", "mid", "hi"]
    frame = wide(**{f"q{k}": pd.Categorical(rng.choice(levels, 30), levels, ordered=True) for k in range(4)})
    model = Headstart(random_state=0, quiet=True).fit(frame)
    model.add_feature("same", kind="ordinal:lo,mid,hi", observations={"r0": "lo"})
    model.add_feature("other", kind="ordinal:never,often,always", observations={"r0": "often"})
    prediction = model.predict(rows=["r0"], features=["same", "other"])
    assert prediction.levels("other") == ["never", "often", "always"]
    np.testing.assert_allclose(prediction.probabilities("other").sum(axis=1), 1)
    assert "%" in repr(prediction)
