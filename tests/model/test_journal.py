"""The journal of a saved model: changes that are made again give the same model, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.faults.models import fresh, table
from tests.limits import Limits
from tests.states import state_of

from headstart.errors import InputError, ModelFileError, ModelFileWarning, StorageError, SurpriseWarning
from headstart.model import Headstart
from headstart.model.saving import journal
from headstart.model.saving.format import model_tensors
from headstart.table import Table

Change = Callable[[Headstart], object]


def with_everything(place: Path) -> Path:
    """A saved model with metadata of features and rows, whose observations age."""
    random = np.random.default_rng(0)
    row, feature = np.nonzero(random.random((30, 12)) < 0.6)
    data = Table.read(
        pa.table(
            {
                "row": [f"u{i}" for i in row],
                "feature": [f"f{j}" for j in feature],
                "value": random.integers(1, 6, len(row)).astype(float),
                "time": random.random(len(row)) * 10,
            }
        ),
        kinds="rating:1:5",
        time="time",
        metadata=pa.table({"feature": [f"f{j}" for j in range(12)], "year": random.integers(1950, 2020, 12)}),
        row_metadata=pa.table({"row": [f"u{i}" for i in range(30)], "age": random.integers(10, 90, 30)}),
    )
    Headstart(adapter="bayes", half_life=5, quiet=True).fit(data).save(place)
    return place


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_everything(tmp_path_factory.mktemp("journal") / "m")


def plain(place: Path, kind: str = "rating") -> Path:
    fresh(kind).save(place)
    return place


def changed(place: Path, *changes: Change) -> Headstart:
    """Change a saved model, each change by an update of its own; return the last model in memory."""
    for change in changes:
        with Headstart.updating(place) as model:
            change(model)
    return model


def journals(place: Path) -> list[Path]:
    return list(place.glob("journal-*"))


def assert_same(one: Headstart, other: Headstart) -> None:
    """All that a model is saved as is the same, to the last bit."""
    assert one.features == other.features
    assert list(one.rows) == list(other.rows)
    first, second = model_tensors(state_of(one)), model_tensors(state_of(other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert one.staleness() == other.staleness()
    assert one.table() == other.table()
    for name in one.features:
        mine, yours = one.feature(name), other.feature(name)
        assert (mine.kind, mine.shots, mine.metadata) == (yours.kind, yours.shots, yours.metadata)


VERBS: dict[str, list[Change]] = {
    "add a feature": [lambda m: m.add_feature("new", {"year": 1990}, {"u1": 4, "u2": 1})],
    "add features": [
        lambda m: m.add_features({"a": {}, "b": {"observations": {"u3": 5}, "kind": "rating:1:5"}})
    ],
    "observe a feature": [
        lambda m: m.add_feature("new"),
        lambda m: m.observe_feature("new", {"u1": 3, "u9": 2}, time=12.5),
        lambda m: m.observe_feature("new", {"u1": 5}, time=13),
    ],
    "observe one": [
        lambda m: m.observe([("u1", "f1", 5)], time=11),
        lambda m: m.observe([("u1", "f2", 1, 12)]),
        lambda m: m.observe([("u2", "f1", 2)], time=14),
    ],
    "observe many": [
        lambda m: m.observe([("u9", "f7", 5), ("u1", "f3", 1), ("u9", "f3", 4), ("u4", "f1", 2)], time=11)
    ],
    "observe by rows": [lambda m: m.observe([("u1", "f1", 5), ("u2", "f1", 5)], time=11, update="rows")],
    "observe by features": [lambda m: m.observe([("u1", "f1", 5)], time=11, update="features")],
    "a feature by both": [lambda m: m.observe_feature("f1", {"u1": 5, "u3": 2}, time=11, update="both")],
    "add rows": [
        lambda m: m.add_rows({"new": {"f1": 5, "f2": 1}, 7: {}}, {"new": {"age": 33}}),
        lambda m: m.observe([("new", "f3", 5), ("7", "f1", 4)], time=11),
    ],
    "add rows that teach": [lambda m: m.add_rows({"new": {"f1": 5, "f2": 1}}, update="both")],
    "remove a row": [lambda m: m.remove_row("u3"), lambda m: m.observe([("u4", "f1", 5)], time=11)],
    "remove a feature": [
        lambda m: m.remove_feature("f3"),
        lambda m: m.observe([("u4", "f1", 5)], time=11),
        lambda m: m.add_feature("f3"),
    ],
    "rename": [
        lambda m: m.rename_feature("f3", "third"),
        lambda m: m.rename_row("u3", "you"),
        lambda m: m.observe_feature("third", {"you": 4}, time=11),
    ],
}


@pytest.mark.parametrize("what", VERBS)
def test_replaying_gives_the_same_model(what: str, everything: Path, tmp_path: Path) -> None:
    place = tmp_path / "m"
    Headstart.load(everything).save(place)
    weights = sorted(path.name for path in place.glob("weights-*"))
    live = changed(place, *VERBS[what])
    assert len(journals(place)) == 1
    assert sorted(path.name for path in place.glob("weights-*")) == weights  # only the journal was written
    assert_same(Headstart.load(place), live)


@pytest.mark.parametrize("what", VERBS)
def test_replaying_is_the_same_as_changing_a_model_in_memory(
    what: str, everything: Path, tmp_path: Path
) -> None:
    place = tmp_path / "m"
    Headstart.load(everything).save(place)
    changed(place, *VERBS[what])
    live = Headstart.load(everything)
    for change in VERBS[what]:
        change(live)
    assert_same(Headstart.load(place), live)


@pytest.mark.parametrize("kind", ["rating", "binary"])
def test_many_observations_are_replayed_together(kind: str, tmp_path: Path) -> None:
    """A row and a feature get several of them, and three cells are corrected later."""
    place = plain(tmp_path / "m", kind)
    low, high = (1, 5) if kind == "rating" else (0, 1)
    triples = [(f"u{i % 7}", f"f{i % 5}", (low, high)[i % 2]) for i in range(30)]
    triples += [(row, feature, low) for row, feature, _ in triples[:3]]
    live = changed(place, *(lambda m, triple=triple: m.observe([triple]) for triple in triples))
    again = Headstart.load(place)
    assert again.table() == live.table()
    assert again.staleness() == live.staleness()
    np.testing.assert_allclose(again.predict().mean, live.predict().mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(again.predict().std, live.predict().std, rtol=1e-6, atol=1e-6)
    again.observe([("u1", "f9", high)])
    live.observe([("u1", "f9", high)])
    np.testing.assert_allclose(again.predict().mean, live.predict().mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["real", "binary"])
def test_other_kinds_are_replayed_too(kind: str, tmp_path: Path) -> None:
    place = plain(tmp_path / "m", kind)
    live = changed(
        place,
        lambda m: m.add_feature("new", observations={"u1": 1, "u2": 0, "u5": 1}),
        lambda m: m.observe_feature("new", {"u7": 1}),
        lambda m: m.observe([("u1", "new", 0), ("u2", "f1", 1)]),
        lambda m: m.add_rows({"r": {"f1": 1, "new": 0}}),
    )
    assert_same(Headstart.load(place), live)


def test_a_surprise_is_said_once_and_not_when_it_is_replayed(tmp_path: Path) -> None:
    place = plain(tmp_path / "m", "real")
    with pytest.warns(SurpriseWarning):
        changed(place, lambda m: m.observe_feature("f1", {"u1": 1e6}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Headstart.load(place).feature("f1").shots > 0


def test_a_failed_update_writes_nothing(tmp_path: Path) -> None:
    place = plain(tmp_path / "m")
    with pytest.raises(InputError):
        changed(place, lambda m: (m.add_feature("new"), m.observe_feature("nobody", {"u1": 3})))
    assert not journals(place)
    with Headstart.updating(place):
        pass
    assert not journals(place)
    assert "new" not in Headstart.load(place).features


def test_what_no_call_did_is_saved_whole(tmp_path: Path) -> None:
    place = plain(tmp_path / "m")
    changed(place, lambda m: m.add_feature("new"))
    assert journals(place)
    with Headstart.updating(place) as model:
        model.add_feature("another")
        model.set_params(quiet=True).fit(table("rating"))
    assert not journals(place)
    assert "another" not in Headstart.load(place).features
    changed(place, lambda m: (m.save(place), m.add_feature("another")))
    assert not journals(place)
    assert "another" in Headstart.load(place).features


def test_a_copy_inside_updating_is_not_journaled(tmp_path: Path) -> None:
    from copy import copy

    place = plain(tmp_path / "m")
    changed(place, lambda m: (copy(m).add_feature("of the copy"), m.add_feature("new")))
    assert Headstart.load(place).features[-1] == "new"


def test_a_long_journal_becomes_a_whole_model(tmp_path: Path, limits: Limits) -> None:
    place = plain(tmp_path / "m")
    limits(journal_changes=3)
    for i in range(5):
        live = changed(place, lambda m, i=i: m.add_feature(f"new{i}", observations={f"u{i}": 3}))
    assert len(journals(place)) == 1
    assert journals(place)[0].read_text().count("\n") == 1  # three, then all four were saved, then one
    assert_same(Headstart.load(place), live)
    limits(journal_bytes=10)
    limits(journal_share=10**9)
    live = changed(place, lambda m: m.add_feature("large"))
    assert not journals(place)
    assert_same(Headstart.load(place), live)


def three_lines(place: Path) -> tuple[Path, bytes]:
    changed(plain(place), *(lambda m, i=i: m.add_feature(f"new{i}") for i in range(3)))
    (path,) = journals(place)
    return path, path.read_bytes()


def before_the_last(place: Path) -> tuple[Path, bytes, bytes]:
    """Three changes of which the writer of the third was killed before it acknowledged it.

    Returns the path of the journal, all lines, and those that were acknowledged.
    """
    changed(plain(place), *(lambda m, i=i: m.add_feature(f"new{i}") for i in range(2)))
    (path,) = journals(place)
    acknowledged = journal.acknowledged_path(path)
    two, count = path.read_bytes(), acknowledged.read_bytes()
    changed(place, lambda m: m.add_feature("new2"))
    acknowledged.write_bytes(count)
    return path, path.read_bytes(), two


def added(place: Path) -> list[str]:
    return [name for name in Headstart.load(place).features if "new" in name]


def test_a_torn_line_counts_as_never_written(tmp_path: Path) -> None:
    """At whatever byte a writer is killed, the model is that of before, and can be changed further."""
    place = tmp_path / "m"
    path, content, whole = before_the_last(place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for end in range(len(whole), len(content), 13):
            path.write_bytes(content[:end])
            assert added(place) == ["new0", "new1"]
        path.write_bytes(content)
        assert added(place) == ["new0", "new1", "new2"]  # on the disk, though not acknowledged
        path.write_bytes(content[:-9])
        live = changed(place, lambda m: m.add_feature("after"))
        assert path.read_bytes().startswith(whole)
        assert_same(Headstart.load(place), live)


def test_a_cut_journal_is_said(tmp_path: Path) -> None:
    """At every byte: a change that was acknowledged is there, or the model is refused."""
    place = tmp_path / "m"
    path, content = three_lines(place)
    for end in [*range(0, len(content), 17), *range(len(content) - 20, len(content))]:
        path.write_bytes(content[:end])
        with pytest.raises(ModelFileError, match=r"is cut short: 3 changes were acknowledged, and \d of"):
            Headstart.load(place)
        assert path.read_bytes() == content[:end]
    with pytest.raises(ModelFileError, match="cut short"), Headstart.updating(place):
        pass
    path.unlink()
    with pytest.raises(ModelFileError, match=r"and 0 of them are there, with 0 bytes"):
        Headstart.load(place)
    path.write_bytes(content)
    assert added(place) == ["new0", "new1", "new2"]


def test_what_is_cut_off_is_kept(tmp_path: Path) -> None:
    """As the error advises: nothing is lost by going on with the whole changes."""
    place = tmp_path / "m"
    path, content = three_lines(place)
    whole = content[: content[:-1].rindex(b"\n") + 1]
    path.write_bytes(content[:-30])
    journal.acknowledged_path(path).unlink()
    with pytest.warns(ModelFileWarning, match="its 2 whole changes were loaded; .* will keep the .* bytes"):
        assert added(place) == ["new0", "new1"]
    with pytest.warns(ModelFileWarning):
        live = changed(place, lambda m: m.add_feature("after"))
    (rest,) = place.glob("cut-off-*")
    assert rest.read_bytes() == content[len(whole) : -30]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(Headstart.load(place), live)
    live.save(place)
    assert rest.exists()


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 4096, b"half a thought\n", b"0000000a" + b"\0" * 100])
def test_bytes_after_the_acknowledged_changes_are_said(tail: bytes, tmp_path: Path) -> None:
    """A power failure may leave zeros where a change was being written."""
    place = tmp_path / "m"
    path, content = three_lines(place)
    path.write_bytes(content + tail)
    with pytest.warns(ModelFileWarning, match=rf"ends with {len(tail)} bytes .* all 3 acknowledged changes"):
        assert added(place) == ["new0", "new1", "new2"]
    with pytest.warns(ModelFileWarning):
        live = changed(place, lambda m: m.add_feature("after"))
    assert [file.read_bytes() for file in place.glob("cut-off-*")] == [tail]
    assert_same(Headstart.load(place), live)


def test_zeros_over_an_acknowledged_change_are_said(tmp_path: Path) -> None:
    place = tmp_path / "m"
    path, content = three_lines(place)
    for zeros in (1, 10, 200, len(content)):
        path.write_bytes(content[:-zeros] + b"\0" * zeros)
        with pytest.raises(ModelFileError, match=r"is (damaged|cut short)") as caught:
            Headstart.load(place)
        assert f"remove {path}" not in str(caught.value)


@pytest.mark.parametrize("how", ["flipped", "empty", "of another", "a list", "a link"])
def test_a_damaged_number_of_changes_is_said(how: str, tmp_path: Path) -> None:
    place = tmp_path / "m"
    path, _ = three_lines(place)
    file = journal.acknowledged_path(path)
    content = file.read_bytes()
    if how == "of another":
        other, _ = three_lines(tmp_path / "other")
        changed(tmp_path / "other", lambda m: m.remove_feature("f1"))
        content = journal.acknowledged_path(other).read_bytes()
    file.write_bytes(
        {"flipped": content.replace(b"3", b"2", 1), "empty": b"", "a list": b"[]"}.get(how, content)
    )
    if how == "a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelFileError, match=r"acknowledged-|journal-"):
        Headstart.load(place)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_change_that_cannot_be_acknowledged_is_not_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever sync or rename fails, the journal and its number stay as they were."""
    place = tmp_path / "m"
    path, content = three_lines(place)
    real = getattr(os, call)
    for failing in range(3 if call == "fsync" else 1):
        calls = iter(range(100))

        def refuse(*arguments: object, failing: int = failing, calls: Iterator[int] = calls) -> object:
            if next(calls) == failing:
                raise OSError(5, "Input/output error")
            return real(*arguments)

        monkeypatch.setattr(os, call, refuse)
        with pytest.raises(StorageError):
            changed(place, lambda m: m.add_feature("too much"))
        monkeypatch.undo()
        assert path.read_bytes() == content
        assert added(place) == ["new0", "new1", "new2"]


def test_a_flipped_bit_of_a_journal_is_said(tmp_path: Path) -> None:
    place = tmp_path / "m"
    path, content = three_lines(place)
    for at in np.random.default_rng(0).integers(0, len(content), 60):
        wrong = bytearray(content)
        wrong[at] ^= 1 << int(at) % 8
        path.write_bytes(bytes(wrong))
        with pytest.raises(ModelFileError, match=r"journal-.* is damaged: .*restore it"):
            Headstart.load(place)


@pytest.mark.parametrize(
    "how", ["left out", "moved", "twice", "of another model", "a verb of tomorrow", "link"]
)
def test_a_journal_that_is_not_the_models_is_said(how: str, tmp_path: Path) -> None:
    place = tmp_path / "m"
    path, content = three_lines(place)
    first, second, third = content.splitlines(keepends=True)
    if how == "of another model":
        plain(tmp_path / "real", "real")
        changed(tmp_path / "real", lambda m: m.add_feature("new"))
        content = journals(tmp_path / "real")[0].read_bytes()
    elif how == "a verb of tomorrow":
        base = json.loads((place / "model.json").read_text())["checksum"]
        content = journal.encode_line(base, [{"verb": "dream"}])
    else:
        content = {"left out": first + third, "moved": second + first + third, "twice": first + first}.get(
            how, content
        )
    path.write_bytes(content)
    if how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelFileError, match="link to another" if how == "link" else "journal"):
        Headstart.load(place)


def test_a_journal_that_a_killed_save_left_is_never_replayed(tmp_path: Path) -> None:
    """Neither on another model, nor on the same one when it is saved once more."""
    place, model = tmp_path / "m", fresh()
    path, content = three_lines(place)
    other = fresh()
    other.add_feature("other")
    other.save(place)
    path.write_bytes(content)  # as if the save had been killed before it removed the journal
    assert Headstart.load(place).features == other.features
    model.save(place)
    assert Headstart.load(place).features == model.features
    assert not journals(place)


def test_a_full_disk_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "m"
    path, content = three_lines(place)
    real = journal.os.write

    def half(handle: int, rest: memoryview) -> int:
        if len(rest) > 50:
            return real(handle, rest[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(StorageError, match="the disk is full"):
        changed(place, lambda m: m.add_feature("too much"))
    monkeypatch.undo()
    assert path.read_bytes() == content
    assert "too much" not in Headstart.load(place).features


def _write(place: Path, name: str, count: int) -> None:
    torch.set_num_threads(1)
    for i in range(count):
        with Headstart.updating(place) as model:
            model.add_feature(f"{name}{i}", observations={f"u{i}": 3})


def test_processes_that_write_and_read_at_the_same_time(tmp_path: Path, limits: Limits) -> None:
    """No change is lost, and a reader sees all that was there when it started, also while all is saved."""
    place = plain(tmp_path / "m")
    limits(journal_changes=4)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(place, name, 10)) for name in "ab"]
    for writer in writers:
        writer.start()
    seen: set[str] = set()
    while any(writer.is_alive() for writer in writers):
        features = set(Headstart.load(place).features)
        assert seen <= features
        seen = features
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    features = Headstart.load(place).features[16:]
    assert sorted(features) == sorted(f"{name}{i}" for name in "ab" for i in range(10))
