"""Saved models: whole, checked, and never lost to a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headstart import storage
from headstart.errors import InputError, ModelFileError
from headstart.model import Headstart, folder

Fresh = Callable[..., Headstart]


@pytest.fixture
def saved(fresh: Fresh, tmp_path: Path) -> Path:
    fresh().save(tmp_path / "m")
    return tmp_path / "m"


def test_the_folder_holds_json_and_safetensors_only(saved: Path) -> None:
    names = sorted(path.name for path in saved.iterdir())
    assert names[0] == "model.json"
    assert len(names) == 2
    assert names[1].startswith("weights-")
    assert names[1].endswith(".safetensors")
    assert json.loads((saved / "model.json").read_text())["format"] == folder.FORMAT


@pytest.mark.parametrize("at", ["write_bytes", "write_json"])
def test_a_crash_while_saving_keeps_the_old_model(
    saved: Path, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    before = Headstart.load(saved).predict().mean
    changed = fresh()
    changed.add_feature("new", observations={"u1": 5})

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, at, crash)
    with pytest.raises(KeyboardInterrupt):
        changed.save(saved)
    again = Headstart.load(saved)
    assert "new" not in again.features
    assert np.array_equal(again.predict().mean, before)
    monkeypatch.undo()
    changed.save(saved)
    assert "new" in Headstart.load(saved).features
    assert len(list(saved.iterdir())) == 2


def test_a_crash_in_the_middle_of_a_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    storage.write_bytes(path, b"old")

    def crash(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(storage.os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        storage.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"


def damaged(saved: Path, how: str) -> None:
    index, weights = saved / "model.json", next(saved.glob("weights-*"))
    facts = json.loads(index.read_text())
    if how == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif how == "flipped byte":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(bytes(content))
    elif how == "no weights":
        weights.unlink()
    elif how == "no index":
        index.unlink()
    elif how == "truncated index":
        index.write_text(index.read_text()[:200])
    elif how == "no format":
        index.write_text("[]")
    elif how == "newer":
        index.write_text(json.dumps({**facts, "format": 99}))
    elif how == "missing part":
        del facts["features"]
        index.write_text(json.dumps(facts))
    elif how == "strange settings":
        facts["settings"]["backbone"]["latnt"] = 3
        index.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated weights", "damaged or cut short"),
        ("flipped byte", "damaged or cut short"),
        ("no weights", "is missing"),
        ("no index", "has no model.json"),
        ("truncated index", "cannot be read"),
        ("no format", "does not say which format"),
        ("newer", r"newer version \(format 99.*upgrade headstart"),
        ("missing part", "model.json is damaged.*features"),
        ("strange settings", "model.json is damaged.*latnt"),
    ],
)
def test_a_damaged_folder_is_said_so(saved: Path, how: str, message: str) -> None:
    damaged(saved, how)
    with pytest.raises(ModelFileError, match=message):
        Headstart.load(saved)


def test_a_model_of_the_format_before_is_read(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh(meta_share=1 / 3)
    model.add_feature("new", observations={"u1": 5})
    model.save(tmp_path / "m")
    index = tmp_path / "m" / "model.json"
    facts = json.loads(index.read_text())
    del facts["relative"], facts["streams"]
    facts["features"]["trained"] = facts["features"].pop("encoded")
    index.write_text(json.dumps({**facts, "format": 1}))
    old = Headstart.load(tmp_path / "m")
    assert np.array_equal(old.predict().mean, model.predict().mean)
    assert np.array_equal(old.predict().std, model.predict().std)
    assert all(old.feature(name).encoded == model.feature(name).encoded for name in model.features)
    old.observe("new", {"u2": 1})
    old.save(tmp_path / "m")
    assert json.loads(index.read_text())["format"] == folder.FORMAT


def test_writers_at_the_same_time_lose_nothing(saved: Path) -> None:
    def add(number: int) -> None:
        with Headstart.updating(saved) as model:
            model.add_feature(f"new{number}", observations={"u1": 1 + number % 5})

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(Headstart.load, saved) for _ in range(4)]
        for writer in [pool.submit(add, number) for number in range(8)]:
            writer.result()
    assert all(reader.result().features for reader in readers)
    assert {f"new{number}" for number in range(8)} <= set(Headstart.load(saved).features)
    assert len(list(saved.iterdir())) == 2


def test_a_failed_update_changes_nothing(saved: Path) -> None:
    def twice() -> None:
        with Headstart.updating(saved) as model:
            model.add_feature("new")
            model.add_feature("new")

    before = (saved / "model.json").read_bytes()
    with pytest.raises(InputError, match="already in the model"):
        twice()
    assert (saved / "model.json").read_bytes() == before


def test_a_model_without_features_can_be_saved(fresh: Fresh, tmp_path: Path) -> None:
    model = fresh()
    for name in model.features:
        model.remove_feature(name)
    model.save(tmp_path / "m")
    again = Headstart.load(tmp_path / "m")
    assert again.features == []
    again.add_feature("new", observations={"u1": 3})
    assert again.predict(features=["new"]).mean.shape == (60, 1)


def test_places_that_hold_other_things_are_refused(fresh: Fresh, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="holds other things"):
        fresh().save(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        fresh().save(tmp_path / "thesis.txt")
    with pytest.raises(ModelFileError, match="no such folder"):
        Headstart.load(tmp_path / "nowhere")
