"""Large saved models, mapped into memory: the same as read whole, and never silently wrong."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.faults.models import fresh
from tests.limits import Limits
from tests.model.test_journal import VERBS, assert_same, changed, with_everything
from tests.states import is_lazy

from headstart import files as storage
from headstart.errors import ModelFileError, UnknownNameError
from headstart.files import MappedFile
from headstart.model import Headstart
from headstart.model.saving import loading as opening
from headstart.model.saving.lazy import SavedNames, name_tensors
from headstart.table import Names


@pytest.fixture(autouse=True)
def all_are_large(limits: Limits) -> None:
    limits(mapped_from_bytes=0)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Headstart:
    """A model with metadata of features and rows, times, sums and rows observed since its fit."""
    model = Headstart.load(with_everything(tmp_path_factory.mktemp("quick") / "m"))
    model.add_feature("extra", {"year": 1990}, {"u1": 4, "u2": 1})
    model.observe_feature("extra", {"u5": 2}, time=11)
    model.observe([("u1", "f1", 5), ("u2", "f3", 1), ("u1", "extra", 3)], time=12)
    model.observe_feature("f2", {"u7": 2}, time=13)
    model.remove_feature("f5")
    return model


def both(model: Headstart, place: Path) -> tuple[Headstart, Headstart]:
    """A saved model read quickly, and read as a whole."""
    model.save(place)
    quickly = Headstart.load(place, verify=False)
    assert is_lazy(quickly)
    other = place.with_name("whole")
    model.save(other)
    next(other.glob("lazy-*")).unlink()
    whole = Headstart.load(other)
    assert not is_lazy(whole)
    return quickly, whole


@pytest.mark.parametrize("what", ["nothing", *VERBS])
def test_it_is_the_same_model(what: str, everything: Headstart, tmp_path: Path) -> None:
    """As it is opened, and after every change."""
    quickly, whole = both(everything, tmp_path / "m")
    for change in VERBS.get(what, []):
        change(quickly)
        change(whole)
    assert_same(quickly, whole)
    one, other = quickly.predict(), whole.predict()
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.std, other.std)


@pytest.mark.parametrize("kind", ["rating", "real", "binary"])
def test_all_questions_have_the_same_answers(kind: str, tmp_path: Path) -> None:
    model = fresh(kind)
    model.add_feature("new", observations={"u1": 1, "u2": 0 if kind == "binary" else 1, "u5": 1})
    quickly, whole = both(model, tmp_path / "m")
    questions: list[Callable[[Headstart], object]] = [
        lambda m: m.recommend("u1", n=5).to_arrow() if kind != "real" else None,
        lambda m: m.similar("new", 3).to_arrow(),
        lambda m: m.suggest("new", n=3),
        lambda m: m.explain("u1", "new").to_arrow(),
        lambda m: m.predict({"x": {"f1": 1, "new": 1}}).mean.tolist(),
        lambda m: m.feature("new").observations,
        lambda m: m.staleness(),
        lambda m: str(m.info),
        lambda m: (m.rows[3], m.rows[-1], m.rows[1:3], len(m.rows), m.features),
        lambda m: m.table().counts.tolist(),
    ]
    for ask in questions:
        assert ask(quickly) == ask(whole)


def test_a_copy_is_a_model_of_its_own(tmp_path: Path) -> None:
    quickly, whole = both(fresh(), tmp_path / "m")
    for made in (copy.deepcopy(quickly), pickle.loads(pickle.dumps(quickly))):
        made.observe([("u1", "f1", 5)])
        assert_same(quickly, whole)


def test_more_changes_than_there_is_room_for(tmp_path: Path, limits: Limits) -> None:
    limits(mapped_spare_lines=3)
    quickly, whole = both(fresh(), tmp_path / "m")
    for i in range(8):
        for model in (quickly, whole):
            model.add_feature(f"new{i}", observations={"u1": 3})
            model.observe([(f"u{i}", f"f{i}", 5), ("u9", f"new{i}", 1)])
    assert_same(quickly, whole)


def test_saving_what_is_mapped_over_itself(tmp_path: Path) -> None:
    quickly, whole = both(fresh(), tmp_path / "m")
    quickly.add_feature("new")
    whole.add_feature("new")
    quickly.save(tmp_path / "m")
    assert len(list((tmp_path / "m").iterdir())) == 3
    assert_same(quickly, whole)
    assert_same(Headstart.load(tmp_path / "m", verify=False), whole)


def test_the_journal_of_a_large_model(everything: Headstart, tmp_path: Path) -> None:
    everything.save(tmp_path / "m")
    live = changed(
        tmp_path / "m",
        lambda m: m.observe([("u1", "f1", 5)], time=14),
        lambda m: m.rename_row("u1", "me"),
        lambda m: m.observe_feature("f1", {"me": 2}, time=15),
    )
    assert len(list(tmp_path.glob("m/journal-*"))) == 1
    for verify in (True, False):
        assert_same(Headstart.load(tmp_path / "m", verify=verify), live)


def test_what_is_slow_to_replay_is_saved_whole(tmp_path: Path) -> None:
    fresh().save(tmp_path / "m")
    for change in (lambda m: m.remove_row("u1"), lambda m: m.rename_feature("f1", "other")):
        live = changed(tmp_path / "m", lambda m: m.add_feature(f"new{len(m.features)}"), change)
        assert not list(tmp_path.glob("m/journal-*"))
        assert_same(Headstart.load(tmp_path / "m"), live)


def test_features_that_are_mapped_come_and_go(tmp_path: Path) -> None:
    quickly, whole = both(fresh(), tmp_path / "m")
    for model in (quickly, whole):
        model.remove_feature("f3")
        model.add_feature("new")
        model.observe_feature("f1", {"u1": 3})
        model.remove_feature("f1")
        model.remove_feature("new")
        model.add_feature("f1")
        model.add_feature("new", observations={"u2": 3})
        with pytest.raises(UnknownNameError):
            model.remove_feature("f3")
    assert_same(quickly, whole)
    assert quickly.recommend("u1").to_arrow() == whole.recommend("u1").to_arrow()


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 16
    path.write_bytes(bytes(content))


def test_damaged_weights_are_said_by_load_and_never_saved_anew(tmp_path: Path, limits: Limits) -> None:
    place, model = tmp_path / "m", fresh()
    model.save(place)
    weights = next(place.glob("weights-*"))
    flipped(weights, weights.stat().st_size // 2)
    with pytest.raises(ModelFileError, match="damaged or cut short"):
        Headstart.load(place)
    limits(journal_changes=1)
    changed(place, lambda m: m.add_feature("new"))  # the journal takes it: it needs nothing of what is there
    before = weights.read_bytes()
    with pytest.raises(ModelFileError, match="damaged or cut short"):
        changed(place, lambda m: m.add_feature("another"))
    assert weights.read_bytes() == before
    weights.write_bytes(weights.read_bytes()[:-100])
    for verify in (True, False):
        with pytest.raises(ModelFileError, match="damaged or cut short"):
            Headstart.load(place, verify=verify)


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "empty", "a link"])
def test_without_its_file_a_model_is_read_whole(how: str, tmp_path: Path) -> None:
    place, model = tmp_path / "m", fresh()
    model.save(place)
    (file,) = place.glob("lazy-*")
    content = file.read_bytes()
    if how == "flipped":
        flipped(file, len(content) - 50)
    elif how == "gone":
        file.unlink()
    elif how == "a link":
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    else:
        file.write_bytes(content[:-1] if how == "cut" else b"")
    loaded = Headstart.load(place)
    assert not is_lazy(loaded)
    assert_same(loaded, Headstart.load(place))


def test_a_damaged_index_is_said_though_it_is_not_needed(tmp_path: Path) -> None:
    place = tmp_path / "m"
    fresh().save(place)
    index = (place / "model.json").read_text()
    (place / "model.json").write_text(index.replace('"u3"', '"u333"', 1))
    with pytest.raises(ModelFileError, match="does not match its checksum"):
        Headstart.load(place)


def test_threads_share_what_is_mapped(tmp_path: Path) -> None:
    quickly, whole = both(fresh(), tmp_path / "m")
    expected = whole.predict().mean
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(lambda: quickly.predict().mean) for _ in range(8)]
        assert all(np.array_equal(each.result(), expected) for each in found)


def test_saved_names_are_names(limits: Limits) -> None:
    words = ["u1", "Amélie", "7", "日本", "a b", *(f"n{i}" for i in range(300))]
    names, saved = Names(words, "row"), SavedNames(name_tensors(words), "row")
    for _ in range(2):
        assert len(saved) == len(names)
        assert [saved[i] for i in (-1, 0, 3)] == [names[i] for i in (-1, 0, 3)]
        asked = ["日本", 7, "u1", " n12 ", "Ame\u0301lie"]
        assert saved.positions(asked).tolist() == names.positions(asked).tolist()
        assert "n299" in saved
        assert "n300" not in saved
        assert None not in saved
        with pytest.raises(UnknownNameError, match="unknown row 'n3000'; did you mean"):
            saved.position("n3000")
        assert saved == names
        assert names == saved
        assert hash(saved) == hash(names)
        assert list(saved) == words
        limits(name_lookups_before_dictionary=0)  # now from a dictionary
    with pytest.raises(IndexError):
        SavedNames(name_tensors(words), "row")[len(words)]
    assert len(SavedNames(name_tensors([]), "row")) == 0
    limits(name_lookups_before_dictionary=1000)
    tensors = name_tensors(words)
    shared = tensors["hashes"][tensors["order"] == names.position("n77")]
    same = SavedNames({**tensors, "hashes": shared.repeat(len(words))}, "row")  # all names share one hash
    assert same.position("n77") == names.position("n77")


def test_mapped_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    tensors = {
        "a/first": torch.arange(12.0).reshape(4, 3),
        "b": torch.arange(5),
        "c": torch.tensor([True, False]),
        "d": torch.zeros(0, 3),
        "e": torch.tensor(2.5, dtype=torch.float64),
        "z": torch.arange(20000.0),
    }
    path = tmp_path / "f"
    path.write_bytes(storage.pack_tensors(tensors, {"some": "facts"}))
    content, file = path.read_bytes(), MappedFile(path)
    assert file.facts == {"some": "facts"}
    for name, tensor in tensors.items():
        assert torch.equal(file.tensors()[name], tensor)
        assert file.tensors()[name].dtype == tensor.dtype
    for name in ("a/first", "z"):  # the last of the file has nothing after it
        roomy = file.with_room(name, 4)
        assert torch.equal(roomy[:-4], tensors[name])
        assert not roomy[-4:].any()
        roomy[:] = 9
    assert all(torch.equal(file.tensors()[name], tensor) for name, tensor in tensors.items())
    assert path.read_bytes() == content
    for wrong in (b"", content[:5], content[:60], content[:-1], content + b"x", b"\xff" * 100):
        path.write_bytes(wrong)
        with pytest.raises(ModelFileError, match="damaged or cut short"):
            MappedFile(path)


def test_check_reads_everything(tmp_path: Path) -> None:
    place = tmp_path / "m"
    fresh().save(place)
    changed(place, lambda m: m.add_feature("new"))
    assert opening.check_model(place).model.feature_store["new"].shots == 0
    (file,) = place.glob("lazy-*")
    whole = file.read_bytes()
    flipped(file, len(whole) - 50)
    with pytest.raises(ModelFileError, match=r"lazy-.* is damaged; remove it"):
        opening.check_model(place)
    file.write_bytes(whole)
    weights = next(place.glob("weights-*"))
    flipped(weights, weights.stat().st_size - 3)
    with pytest.raises(ModelFileError, match=r"weights-.* is damaged"):
        opening.check_model(place)
