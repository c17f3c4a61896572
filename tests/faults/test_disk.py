"""A disk that is full, read-only or forbidden: the error names the place, and what was there stays."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstart import files as storage
from headstart.cli.output import check_destination
from headstart.errors import HeadstartError, StorageError
from headstart.model import Headstart
from tests.faults.models import fresh, table

ERRORS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "quota",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "you may not write there",
    errno.EIO: "what was there before is unchanged",
}


def failing(number: int, calls: int = 0) -> Callable[..., Any]:
    """A call that fails so after it was made so many times."""
    made = 0

    def call(*_: object, **__: object) -> None:
        nonlocal made
        made += 1
        if made > calls:
            raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize(("call", "times"), [("fsync", 0), ("fsync", 1), ("fsync", 2), ("replace", 0)])
def test_a_save_that_the_disk_refuses_keeps_the_old_model(
    number: int, call: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, old, new = tmp_path / "m", fresh(), fresh()
    old.save(place)
    new.add_feature("new", observations={"u1": 3})
    monkeypatch.setattr(os, call, failing(number, times))
    with pytest.raises(StorageError) as refusal:
        new.save(place)
    monkeypatch.undo()
    message = str(refusal.value)
    assert str(place) in message
    assert ERRORS[number] in message
    assert os.strerror(number) in message
    assert refusal.value.errno == number
    assert Headstart.load(place).features in (old.features, new.features)
    assert not list(place.glob(".*"))
    new.save(place)
    assert Headstart.load(place).features == new.features
    assert len(list(place.iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadstartError, match="file"):
        fresh().save(tmp_path / "file" / "m")
    monkeypatch.setattr(os, "mkdir", failing(errno.EROFS))
    with pytest.raises(StorageError, match="the disk is read-only"):
        fresh().save(tmp_path / "new")
    with pytest.raises(StorageError, match="the disk is read-only"):
        Headstart(adapter="bayes", quiet=True).fit(table("rating"), checkpoint=tmp_path / "checkpoint")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    fresh().save(tmp_path / "m")
    (tmp_path / "m").chmod(0o500)
    with pytest.raises(StorageError, match="you may not write there"):
        fresh().save(tmp_path / "m")


def test_a_full_disk_during_training_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "c"
    model = Headstart(adapter="chn", quiet=True, metatraining={"epochs": 2})
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC, 4))
    with pytest.raises(StorageError, match=r"safetensors cannot be written .*the disk is full"):
        model.fit(table("rating"), checkpoint=place)
    monkeypatch.undo()
    model.fit(table("rating"), checkpoint=place, resume=True)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from headstart import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    files.write_bytes(Path(sys.argv[1]), b"new" * 1000)
except OSError as error:
    print(type(error).__name__, error)
"""


def test_a_write_that_really_ends_halfway_keeps_the_old_file(tmp_path: Path) -> None:
    """No call is replaced here: the kernel refuses to let the file grow."""
    place = tmp_path / "f"
    storage.write_bytes(place, b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(place)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"StorageError {place} cannot be written")
    assert "files may not become so large there" in done.stdout
    assert place.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000  # only the other process was limited


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predictions_are_written_whole_or_not_at_all(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / f"p.{suffix}"
    place.write_text("old")
    lines = fresh().predict().to_arrow()
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(StorageError, match="the disk is full"):
        check_destination(str(place), None, True).write(lines)
    assert place.read_text() == "old"
    monkeypatch.undo()

    def halfway(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", halfway)
    with pytest.raises(KeyboardInterrupt):
        check_destination(str(place), None, True).write(lines)
    monkeypatch.undo()
    assert place.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    link = tmp_path / f"link.{suffix}"
    link.symlink_to(place)
    check_destination(str(link), None, True).write(lines)
    assert link.is_symlink()
    assert place.stat().st_size > 100


def test_names_are_synced_after_every_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename is on the disk only once its folder is: each is followed by a sync of the folder."""
    events: list[tuple[str, str]] = []
    replace, fsync, mkdir = os.replace, os.fsync, os.mkdir

    def spy_replace(source: Any, target: Any) -> None:
        replace(source, target)
        events.append(("renamed in", str(Path(target).parent)))

    def spy_fsync(handle: int) -> None:
        fsync(handle)
        events.append(("synced", os.readlink(f"/proc/self/fd/{handle}")))

    def spy_mkdir(path: Any, *args: Any, **named: Any) -> None:
        mkdir(path, *args, **named)
        events.append(("made in", str(Path(path).parent)))

    monkeypatch.setattr(os, "replace", spy_replace)
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "mkdir", spy_mkdir)
    model, place = fresh(), tmp_path / "a" / "b" / "m"
    model.save(place)
    for number, (what, where) in enumerate(events):
        if what != "synced":
            assert ("synced", where) in events[number + 1 :], (what, where)
    assert ("renamed in", str(place)) in events
    assert ("made in", str(tmp_path)) in events
    assert np.array_equal(Headstart.load(place).predict().mean, model.predict().mean)
