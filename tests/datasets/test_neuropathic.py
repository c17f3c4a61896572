from __future__ import annotations

import os
from pathlib import Path

import pytest

from headstart.datasets import neuropathic
from headstart.errors import InputError

TEXT = "pain,rare,ache\n1,0,1\n1,1,0\n0,0,1\n"


@pytest.fixture
def file(tmp_path):
    def write(text: str = TEXT) -> Path:
        path = tmp_path / "simulated_1000.csv"
        path.write_text(text)
        return path

    return write


def test_rare_labels_are_left_out_and_the_others_are_binary(file):
    table = neuropathic(file(), at_least=2)
    assert table.shape == (3, 2)
    assert table.kinds.summary() == "2 binary"
    assert table.observations_of("pain") == {"patient 0": 1.0, "patient 1": 1.0, "patient 2": 0.0}
    assert table.metadata is None


def test_labels_and_patients_are_sorted_by_name(file):
    """Random splits of stored results depend on the order."""
    table = neuropathic(file(TEXT + "0,1,0\n" * 8), at_least=1)
    assert list(table.features) == ["ache", "pain", "rare"]
    assert list(table.rows)[:3] == ["patient 0", "patient 1", "patient 10"]
    assert table.observations_of("rare")["patient 10"] == 1


def test_a_folder_can_be_given(file):
    path = file()
    assert neuropathic(path.parent, at_least=1) == neuropathic(path, at_least=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pain,ache\n1,0\n1,x\n", r"simulated_1000.csv, line 3: .* got '1,x'"),
        ("pain,ache\n1,0\n1\n", r"line 3: expected 2 fields .* got '1'"),
        ("pain,ache\n1,0\n2,1\n", r"line 3: .* got '2,1'"),
        ("pain,ache\n1,0\n1,", r"line 3: .* got '1,'"),
        ("pain,ache\n", "contains only a header"),
        ("pain,pain\n1,0\n", r"line 1: .* columns 'pain' occur twice"),
        ("", "line 1: expected the names of the diagnostic labels"),
        ("pain,ache\n1,0\n", "none of the 2 labels is present in 2 of 1 patients; lower at_least"),
    ],
)
def test_the_error_for_a_bad_file_quotes_the_line(file, text, message):
    with pytest.raises(InputError, match=message):
        neuropathic(file(text), at_least=2)


def test_the_error_for_a_missing_file_says_where_to_get_it(tmp_path):
    with pytest.raises(InputError, match=r"no simulated_1000.csv in .*Neuropathic-Pain-Diagnosis-Simulator"):
        neuropathic(tmp_path)


def test_the_real_files():
    variable = os.environ.get("HEADSTART_DATA")
    folder = Path(variable) if variable else Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "neuropathic").is_dir():
        pytest.skip(f"neuropathic/ is not in {folder}; set HEADSTART_DATA to the folder that contains it")
    table = neuropathic(folder)
    assert table.shape == (1000, 81)
    assert table.values.mean() == pytest.approx(0.173, abs=0.001)
    assert neuropathic(folder / "neuropathic" / "published_100.csv", at_least=0).shape == (100, 222)
