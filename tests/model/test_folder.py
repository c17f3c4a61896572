"""Saved models: whole, checked, and never lost to a crash."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.model.conftest import QUICK, ratings_table
from tests.stand_ins import registered

from headstart import files as storage
from headstart.adapters import ADAPTERS, AdapterConfig
from headstart.adapters.baselines import MeanOfContext
from headstart.errors import InputError, ModelFileError
from headstart.model import Headstart
from headstart.model.saving import folder
from headstart.model.saving.format import FORMAT, checksum
from headstart.training.meta_training import MetaTrainingConfig

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
    assert json.loads((saved / "model.json").read_text())["format"] == FORMAT


@pytest.mark.parametrize("file", ["weights", "index"])
def test_a_crash_while_saving_keeps_the_old_model(
    saved: Path, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    before = Headstart.load(saved).predict().mean
    changed = fresh()
    changed.add_feature("new", observations={"u1": 5})

    replace, replaced = os.replace, []

    def crash(source: str, target: str) -> None:
        """Crash before the first or the second file gets its name."""
        if len(replaced) == (file == "index"):
            raise KeyboardInterrupt
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
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

    monkeypatch.setattr(os, "fsync", crash)
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
    elif how == "changed by hand":
        facts["features"]["shots"][0] += 1
        index.write_text(json.dumps(facts))
    elif how == "no checksum":
        del facts["checksum"]
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
        ("changed by hand", "model.json is damaged: its content does not match its checksum"),
        ("no checksum", "model.json is damaged: its content does not match its checksum"),
    ],
)
def test_a_damaged_folder_is_said_so(saved: Path, how: str, message: str) -> None:
    damaged(saved, how)
    with pytest.raises(ModelFileError, match=message):
        Headstart.load(saved)


def test_the_layout_of_the_json_does_not_matter(saved: Path) -> None:
    """The checksum is of what it says, not of how it is written."""
    index = saved / "model.json"
    facts = json.loads(index.read_text())
    index.write_text(json.dumps(dict(reversed(facts.items())), indent=7))
    assert Headstart.load(saved).features == facts["features"]["names"]


Facts = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def rewritten(saved: Path, change: Callable[[Facts, Tensors], object]) -> None:
    """Change facts and tensors, with every digest as it should be."""
    index, weights = saved / "model.json", next(saved.glob("weights-*"))
    facts, tensors = json.loads(index.read_text()), storage.unpack_tensors(weights.read_bytes())
    del facts["checksum"]
    change(facts, tensors)
    content = storage.pack_tensors(tensors)
    if content != weights.read_bytes():
        weights.unlink()
        facts["weights_sha256"] = hashlib.sha256(content).hexdigest()
        facts["weights"] = f"weights-{facts['weights_sha256'][:16]}.safetensors"
        (saved / facts["weights"]).write_bytes(content)
    index.write_text(json.dumps({**facts, "checksum": checksum(facts)}))


def drop_feature(facts: Facts, _: Tensors) -> None:
    for part in facts["features"].values():
        part.pop()


def out_of_range(name: str) -> Callable[[Facts, Tensors], None]:
    def change(_: Facts, tensors: Tensors) -> None:
        tensors[name][0] = 10_000

    return change


def negative(name: str) -> Callable[[Facts, Tensors], None]:
    def change(_: Facts, tensors: Tensors) -> None:
        tensors[name][0] = -1

    return change


def not_a_number(name: str) -> Callable[[Facts, Tensors], None]:
    def change(_: Facts, tensors: Tensors) -> None:
        tensors[name].view(-1)[3] = torch.nan

    return change


def shorter(name: str) -> Callable[[Facts, Tensors], None]:
    def change(_: Facts, tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


def disagree(*what: str) -> str:
    return f"its {', '.join(map(repr, what))} do not agree with the weights"


WRONG: dict[str, tuple[Callable[[Facts, Tensors], object], str]] = {
    "missing part": (lambda facts, _: facts.pop("features"), "setting 'features'"),
    "strange part": (lambda facts, _: facts.update(extra=1), "has no setting 'extra'"),
    "strange settings": (lambda facts, _: facts["settings"]["backbone"].update(latnt=3), "latnt"),
    "strange kind": (lambda facts, _: facts["features"]["kinds"].__setitem__(0, "ratng"), "'ratng' is not"),
    "shots below none": (lambda facts, _: facts["features"]["shots"].__setitem__(0, -1), "greater than or"),
    "a name of nothing": (lambda facts, _: facts["rows"].__setitem__(0, ""), "setting 'rows.0'"),
    "a row twice": (
        lambda facts, _: facts["rows"].__setitem__(1, facts["rows"][0]),
        "row 'u.*' is there twice",
    ),
    "a feature twice": (
        lambda facts, _: facts["features"]["names"].__setitem__(1, facts["features"]["names"][0]),
        "feature 'f.*' is there twice",
    ),
    "a feature of the backbone twice": (
        lambda facts, _: facts["backbone_features"].__setitem__(1, facts["backbone_features"][0]),
        "feature 'f.*' is there twice",
    ),
    "a row too few": (lambda facts, _: facts["rows"].pop(), disagree("rows")),
    "a row too many": (lambda facts, _: facts["rows"].append("one more"), disagree("rows")),
    "a feature too few": (drop_feature, disagree("features", "contexts")),
    "a kind too few": (lambda facts, _: facts["features"]["kinds"].pop(), "model.json is damaged"),
    "a backbone feature too few": (
        lambda facts, _: facts["backbone_features"].pop(),
        disagree("features of the backbone", "observations", "contexts"),
    ),
    "a context's row unknown": (out_of_range("contexts/rows"), disagree("contexts")),
    "a context's row below none": (negative("contexts/rows"), disagree("contexts")),
    "a context too long": (out_of_range("contexts/counts"), disagree("contexts")),
    "a context's value missing": (shorter("contexts/values"), disagree("contexts")),
    "a context's value not a number": (
        not_a_number("contexts/values"),
        "'contexts/values' has numbers that are not finite",
    ),
    "an observation of no feature": (out_of_range("knowledge/index"), disagree("observations")),
    "an observation's value missing": (shorter("knowledge/values"), disagree("observations")),
    "a row's code not a number": (
        not_a_number("states/code"),
        "'states/code' has numbers that are not finite",
    ),
    "a head too few": (shorter("features/bias"), disagree("features")),
    "a row's state too few": (shorter("knowledge/states/code"), disagree("rows")),
    "a tensor of the adapter missing": (
        lambda _, tensors: tensors.pop("adapter/net.0.weight"),
        "Missing key.*net.0.weight",
    ),
    "a tensor of the backbone missing": (
        lambda _, tensors: tensors.pop("backbone/bias"),
        "Missing key.*bias",
    ),
    "a tensor too many": (
        lambda _, tensors: tensors.update({"adapter/more": torch.zeros(1)}),
        "Unexpected key.*more",
    ),
    "levels of no codes": (
        lambda _, tensors: tensors.update({"contexts/levels": torch.ones(3, dtype=torch.float64)}),
        "the codes of its values",
    ),
    "codes without levels": (
        lambda _, tensors: tensors.update({"knowledge/values": tensors["knowledge/values"].to(torch.uint8)}),
        "the codes of its values",
    ),
    "units of no matrix": (
        lambda _, tensors: tensors.update({"units/adapter/none": torch.ones(3)}),
        "has no matrix",
    ),
    "units of other lines": (
        lambda _, tensors: tensors.update(
            {
                "units/adapter/net.0.weight": torch.ones(3),
                "adapter/net.0.weight": tensors["adapter/net.0.weight"].half(),
            }
        ),
        "does not agree with its matrix",
    ),
    "a copy of no tensor": (
        lambda facts, _: facts.update(copies={"adapter/more": "adapter/none"}),
        "its copies of tensors do not agree",
    ),
    "no calibration": (lambda _, tensors: tensors.pop("calibration/factors"), "model.json is damaged"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_does_not_fit_together_is_said_so(fresh: Fresh, tmp_path: Path, how: str) -> None:
    """With checksums as they should be: a model is checked by what it says too."""
    change, message = WRONG[how]
    model = fresh()
    model.add_feature("new", observations={"u1": 5, "u2": 1, "u3": 2, "u4": 3})
    model.save(tmp_path / "m")
    rewritten(tmp_path / "m", lambda *_: None)
    assert Headstart.load(tmp_path / "m").features == model.features
    rewritten(tmp_path / "m", change)
    with pytest.raises(ModelFileError, match=f"(?s){message}"):
        Headstart.load(tmp_path / "m")


@pytest.mark.parametrize(
    "where",
    ["../{name}", "{folder}/{name}", "weights-0123456789abcdef.safetensors/../../{name}", "", None, 3],
)
def test_weights_outside_the_folder_are_not_read(saved: Path, tmp_path: Path, where: object) -> None:
    """Whoever wrote ``model.json``, it names a file of its own folder."""
    index, weights = saved / "model.json", next(saved.glob("weights-*"))
    shutil.move(weights, tmp_path / weights.name)
    facts = json.loads(index.read_text())
    del facts["checksum"]
    facts["weights"] = where.format(name=weights.name, folder=tmp_path) if isinstance(where, str) else where
    index.write_text(json.dumps({**facts, "checksum": checksum(facts)}))
    with pytest.raises(ModelFileError, match="is not a file of weights"):
        Headstart.load(saved)


SETTLED = {
    "chn-bayes": {"shots": "log", "max_shots": 128, "learning_rate": 2e-3, "schedule": "cosine"},
    "chn": {"shots": "uniform", "max_shots": 32, "learning_rate": 5e-4},
    "maml-3": {"batch_size": 4, "learning_rate": 1e-2, "min_steps": 1, "weight_decay": 0.0},
    "chn-bayes-train-2": {"shots": "log", "max_shots": 128},
}


@pytest.mark.parametrize("adapter", SETTLED)
def test_the_settings_that_really_ran_are_stored(fresh: Fresh, tmp_path: Path, adapter: str) -> None:
    model = fresh("factorisation", adapter)
    model.save(tmp_path / "m")
    settings = json.loads((tmp_path / "m" / "model.json").read_text())["settings"]
    backbone = settings["backbone"]
    tensors = load_file(next((tmp_path / "m").glob("weights-*")))
    assert backbone["latent"] == tensors["states/activation"].shape[1]
    assert backbone["signature"] == tensors["backbone/signature.table"].shape[1]
    assert backbone["observed_by_choice"] is True
    stored = settings["adapter"]["base"] if adapter == "chn-bayes-train-2" else settings["adapter"]
    if stored["name"] == "chn-bayes":
        assert stored["activations"] == 24 // 100
    ran = settings["metatraining"]
    assert ran["epochs"] == QUICK["metatraining"]["epochs"]
    for name, value in SETTLED[adapter].items():
        assert ran[name] == value
    assert set(ran) == set(MetaTrainingConfig.model_fields)
    again = Headstart.load(tmp_path / "m")
    again.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "model.json").read_text())["settings"] == settings
    # Nothing is left to a default or a rule that may change: fitted anew by them, it is the same model.
    anew = Headstart(**again.get_params()).set_params(quiet=True).fit(ratings_table())
    assert np.array_equal(anew.predict().mean, model.predict().mean)
    assert np.array_equal(anew.predict().std, model.predict().std)


class TheirsConfig(AdapterConfig):
    name: Literal["theirs"] = "theirs"
    strength: float = 2.0


class Theirs(MeanOfContext):
    """An adapter of another package."""

    config_type: ClassVar[type[AdapterConfig]] = TheirsConfig


def test_a_model_of_another_packages_adapter_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    monkeypatch.setattr(Theirs, "__module__", "their_package.adapters")
    with registered(ADAPTERS, Theirs):
        model = Headstart(adapter={"name": "theirs", "strength": 3}, **QUICK).fit(ratings_table())
        model.save(path)
        assert Headstart.load(path).adapter == TheirsConfig(strength=3)
        expected = model.predict()
    packages = json.loads((path / "model.json").read_text())["packages"]
    assert packages == {"backbone": "headstart", "adapter": "their_package"}
    missing = r"needs the adapter 'theirs' of the package 'their_package'.*install their_package"
    with pytest.raises(ModelFileError, match=missing):
        Headstart.load(path)
    with registered(ADAPTERS, Theirs):
        assert np.array_equal(Headstart.load(path).predict().mean, expected.mean)


def test_a_backbone_that_is_missing_is_said_so(saved: Path) -> None:
    def change(facts: Facts, _: Tensors) -> None:
        facts["settings"]["backbone"]["name"] = "deep"
        facts["packages"]["backbone"] = "deep-headstart"

    rewritten(saved, change)
    with pytest.raises(ModelFileError, match="needs the backbone 'deep' of the package 'deep-headstart'"):
        Headstart.load(saved)


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
    assert len(list(saved.iterdir())) == 4  # with the journal and the file of acknowledged changes


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


def test_a_place_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may finish a first save between two looks."""
    names = [".model.json.abcdefgh.partial", "model.json"]
    looks: list[int] = []

    def listed(place: Path) -> Iterator[Path]:
        looks.append(1)
        return iter([place / name for name in names])  # the first one has been renamed meanwhile

    monkeypatch.setattr(Path, "iterdir", listed)
    folder.check_place(tmp_path)
    assert len(looks) == 1
    names.append("thesis.tex")
    with pytest.raises(InputError, match=r"holds other things \('thesis.tex'\)"):
        folder.check_place(tmp_path)
