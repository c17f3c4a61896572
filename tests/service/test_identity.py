"""A service knows which model a folder holds, also after changes that only its journal has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headstart.errors import ModelFileError
from headstart.model import Headstart
from headstart.model.saving.folder import file_stamp, model_digest
from tests.faults.models import fresh


def test_every_change_gives_another_identity(tmp_path: Path) -> None:
    place = tmp_path / "m"
    with pytest.raises(ModelFileError):
        model_digest(place)
    assert file_stamp(place) is None
    fresh().save(place)
    seen = [(model_digest(place), file_stamp(place))]
    for name in ("first", "second"):
        with Headstart.updating(place) as model:
            model.add_feature(name)
        seen.append((model_digest(place), file_stamp(place)))
    Headstart.load(place).save(place)
    seen.append((model_digest(place), file_stamp(place)))
    assert len({identity for identity, _ in seen}) == len({files for _, files in seen}) == 4
    shutil.copytree(place, tmp_path / "copy")
    assert model_digest(tmp_path / "copy") == model_digest(place)
