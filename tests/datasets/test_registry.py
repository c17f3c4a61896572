from __future__ import annotations

import pytest

from headstart.datasets import DATASETS, data_folder, load_dataset
from headstart.errors import InputError


def test_the_folder_is_an_argument_or_in_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADSTART_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"--data or the environment variable HEADSTART_DATA; it contains ml-1m/"
    ):
        data_folder()
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(InputError, match="'nowhere' does not exist"):
        data_folder("nowhere")


@pytest.mark.parametrize("name", DATASETS)
def test_the_error_for_a_data_set_that_does_not_exist(name, tmp_path):
    with pytest.raises(InputError, match="there is no"):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_a_synthetic_one_of_the_same_kind(name):
    table = DATASETS[name].synthetic()
    assert table.counts.min() > 33
    assert table.kinds.summary().endswith("rating:1:5" if name == "movielens" else "binary")
