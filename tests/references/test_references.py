"""Everything that is stored is still answered as it was: predictions, verbs, files, requests and commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headstart import Headstart
from tests.references.cases import folder_answers
from tests.references.make import FOLDER_MODELS, FOLDERS
from tests.references.storing import answer_of, differences, plain, read
from tests.references.themes import THEMES

EVERY = [(theme, scenario) for theme, scenarios in THEMES.items() for scenario in scenarios]


@pytest.mark.parametrize(("theme", "scenario"), EVERY)
def test_answers_are_as_stored(theme: str, scenario: str, tmp_path: Path) -> None:
    found = answer_of(THEMES[theme][scenario], tmp_path)
    different = list(differences(found, read(theme)[scenario]))
    assert not different, "\n".join(different[:20])


@pytest.mark.parametrize("theme", THEMES)
def test_every_stored_answer_has_a_scenario(theme: str) -> None:
    assert list(read(theme)) == list(THEMES[theme])


# "bayes-earlier" was saved before known heads, the noise of features and the shift of rows had tensors.
@pytest.mark.parametrize("folder", [*FOLDER_MODELS, "bayes-earlier"])
def test_stored_folders_predict_as_they_did(folder: str, tmp_path: Path) -> None:
    stored = json.loads((FOLDERS / f"{folder}.json").read_text())
    shutil.copytree(FOLDERS / folder, tmp_path / "m")
    model = Headstart.load(tmp_path / "m")
    model.save(tmp_path / "m")
    for each in (model, Headstart.load(tmp_path / "m")):
        for name, found in folder_answers(each).items():
            different = list(differences(plain({"mean": found.mean, "std": found.std}), stored[name], name))
            assert not different, "\n".join(different[:20])
