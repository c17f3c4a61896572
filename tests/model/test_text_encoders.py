"""Models whose metadata needs an encoder: saved without it, loaded with it or without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.model.conftest import ratings_table
from tests.stand_ins import hide_modules, install_encoders, write_weights
from tests.states import state_of
from tests.table.test_text_encoders import SHA, WEIGHTS, Stub

from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.model.saving.format import checksum
from headstart.table import Table
from headstart.table.text_encoders import DEFAULT

NEW = {"title": "a new film", "poster": "new.png"}


def lengths(values: list[str]) -> list[list[float]]:
    return [[len(value), value.count("1")] for value in values]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_weights(tmp_path / "downloaded", WEIGHTS)
    install_encoders(monkeypatch, tmp_path / "downloaded", Stub().load)
    table = ratings_table()
    long = pa.table(
        {
            "row": table.rows.take(table.row_index),
            "feature": table.features.take(table.feature_index),
            "value": table.values,
        }
    )
    films = pa.table(
        {
            "feature": list(table.features),
            "title": [f"film {'very ' * i}" for i in range(len(table.features))],
            "poster": [f"{i}.png" for i in range(len(table.features))],
        }
    )
    described = Table.read(long, metadata=films, kinds="rating:1:5", encoders={"poster": lengths}, quiet=True)
    model = Headstart(adapter="bayes", quiet=True).fit(described)
    model.add_feature("before", metadata=NEW)
    model.save(tmp_path / "m")
    return tmp_path / "m"


def test_a_loaded_model_encodes_as_before(saved: Path) -> None:
    model = Headstart.load(saved, encoders={"poster": lengths})
    model.add_features({"after": {"metadata": NEW}, "other": {"metadata": {"title": "x"}}})
    before, after = (state_of(model).feature_store[name].metadata for name in ("before", "after"))
    np.testing.assert_array_equal(before, after)
    with Headstart.updating(saved, encoders={"poster": lengths}) as changed:
        changed.add_feature("again", metadata=NEW)
    assert "again" in Headstart.load(saved).features


def test_the_folder_names_the_encoder_and_its_hash(saved: Path) -> None:
    title, poster = json.loads((saved / "model.json").read_text())["metadata"]["columns"]
    assert title == {"name": "title", "type": "text", "size": 3, "encoder": DEFAULT, "encoder_sha256": SHA}
    assert set(poster) == {"name", "type", "size", "scale"}


def test_without_encoders_all_but_new_values_of_their_columns_works(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_modules(monkeypatch, "huggingface_hub")
    model = Headstart.load(saved)
    before = model.predict(features=["before", "f1"]).mean
    model.add_features({"plain": {}, "blank": {"metadata": {"title": None}}})
    with pytest.raises(
        InputError, match=rf"feature 'n': metadata 'title' cannot be encoded here: .*'{DEFAULT}' is not"
    ):
        model.add_feature("n", metadata={"title": "a new film"})
    with pytest.raises(
        InputError, match="feature 'n': metadata 'poster' is encoded by a function of the user's"
    ):
        model.add_features({"fine": {}, "n": {"metadata": {"poster": "new.png"}}})
    assert "fine" not in model.features
    np.testing.assert_array_equal(model.predict(features=["before", "f1"]).mean, before)
    model.set_encoders({"poster": lengths})
    model.add_feature("n", metadata={"poster": "new.png"})


def test_an_encoder_with_other_weights_is_refused(saved: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    other = write_weights(elsewhere, b"other weights")
    model = Headstart.load(saved, encoders={"title": str(elsewhere)})
    message = f"SHA-256 {SHA}; those of '{elsewhere}' on this machine have {other}"
    with pytest.raises(InputError, match=message):
        model.add_feature("n", metadata={"title": "a new film"})


def name_encoder(saved: Path, encoder: str) -> None:
    """Let a saved model name another encoder, with every digest as it should be."""
    index = saved / "model.json"
    facts = json.loads(index.read_text())
    del facts["checksum"]
    facts["metadata"]["columns"][0]["encoder"] = encoder
    index.write_text(json.dumps({**facts, "checksum": checksum(facts)}))


@pytest.mark.parametrize(
    "encoder",
    ["{folder}", "{folder}/", "{folder}/../evil", "./evil", "evil", "~/evil", "../evil", "someone/evil",
     "sentence-transformers/other", "someone/all-MiniLM-L6-v2", "{folder}/all-MiniLM-L6-v2",
     "file://{folder}", ""],
)  # fmt: skip
def test_a_saved_model_does_not_decide_which_encoder_is_loaded(
    encoder: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Stub()
    install_encoders(monkeypatch, tmp_path / "downloaded", loaded.load)
    monkeypatch.chdir(tmp_path)
    write_weights(tmp_path / "evil", WEIGHTS)
    if "MiniLM" in encoder:
        write_weights(tmp_path / "evil" / "all-MiniLM-L6-v2", WEIGHTS)
    name = encoder.format(folder=tmp_path / "evil")
    name_encoder(saved, name)
    model = Headstart.load(saved)
    with pytest.raises(InputError, match=r"never chooses what to load; .* pass it, as encoders="):
        model.add_feature("n", metadata={"title": "a new film"})
    assert loaded.loaded == 0
    if encoder == "evil":
        monkeypatch.setenv("HEADSTART_ENCODERS", f"other{os.pathsep}evil")
        model.add_feature("n", metadata={"title": f"a film of {tmp_path}"})  # in no cache
        assert loaded.loaded == 1


def test_the_default_encoder_is_found_by_its_name_only(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a folder of the same name that lies in the working directory."""
    write_weights(tmp_path / DEFAULT, b"other weights")
    monkeypatch.chdir(tmp_path)
    Headstart.load(saved).add_feature("n", metadata={"title": "a new film"})


def test_an_encoder_that_the_user_names_is_loaded(saved: Path, tmp_path: Path) -> None:
    write_weights(tmp_path / "mine", WEIGHTS)
    name_encoder(saved, str(tmp_path / "mine"))
    model = Headstart.load(saved, encoders={"title": str(tmp_path / "mine")})
    model.add_feature("n", metadata={"title": "a new film"})
    again = Headstart.load(saved)
    again.add_feature("n", metadata={"title": "a new film"})  # named in this process


CODE = {
    "code": ("custom.py", ""),
    "a library": ("deep/custom.so", ""),
    "pickled weights": ("2_Dense/pytorch_model.bin", ""),
    "a pickle": ("2_Dense/model.pkl", ""),
    "a class of its own": ("modules.json", [{"type": "custom.Evil", "path": ""}]),
    "a class of the system": ("modules.json", [{"type": "subprocess.Popen", "path": ""}]),
    "a module outside": ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "../x"}]),
    "no list of modules": ("modules.json", 5),
    "modules that are no JSON": ("modules.json", None),
    "a router of others": ("router_config.json", {"types": {"query": "os.system"}}),
    "an activation": ("2_Dense/config.json", {"activation_function": "os.getcwd"}),
    "remote code": ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}),
}


@pytest.mark.parametrize("how", CODE)
def test_an_encoder_that_brings_code_is_refused(how: str, saved: Path, tmp_path: Path) -> None:
    name, content = CODE[how]
    folder = tmp_path / "mine"
    write_weights(folder, WEIGHTS)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{" if content is None else json.dumps(content))
    model = Headstart.load(saved, encoders={"title": str(folder)})
    with pytest.raises(InputError, match=f"is refused, because .*{name}"):
        model.add_feature("n", metadata={"title": f"a new film with {how}"})


def test_an_encoder_of_known_classes_is_loaded(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write_weights(folder, WEIGHTS)
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text(json.dumps({"activation_function": "gelu", "auto_map": {}}))
    (folder / "pytorch_model.bin").write_text("beside the .safetensors weights, which are loaded")
    model = Headstart.load(saved, encoders={"title": str(folder)})
    model.add_feature("n", metadata={"title": "a new film"})


def test_encoders_are_checked(saved: Path) -> None:
    model = Headstart.load(saved)
    for wrong, message in (
        ({"poster": "folder"}, "'poster': its encoder must be a function"),
        ({"title": lengths}, "'title': its encoder must be a folder"),
        ([1], "encoders must map names to values"),
    ):
        with pytest.raises(InputError, match=message):
            model.set_encoders(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="did you mean 'poster'"):
        model.set_encoders({"postr": lengths})
    years = Headstart(adapter="bayes", quiet=True).fit(ratings_table())
    with pytest.raises(InputError, match="'year' takes no encoder; its type is number"):
        years.set_encoders({"year": lengths})
