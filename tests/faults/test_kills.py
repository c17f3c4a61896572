"""Work that is killed at any moment: what was acknowledged is there, and the same work can be done again."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headstart import files as storage
from headstart.model import Headstart
from headstart.model.fitting import CHECKPOINT_FACTS, lock_checkpoint, open_checkpoint, part_file
from headstart.model.state import Settings
from tests.faults.killing import killed_at
from tests.faults.models import fresh, table
from tests.limits import Limits
from tests.test_cli import run, start

KILLS = 12  # of each kind of work, at different steps

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are neither forks nor SIGKILL")


def kills(work: Callable[[], object], prepare: Callable[[], object], seed: int) -> Iterator[int]:
    """Kill the work at steps chosen at random, preparing anew before each; yield after each kill."""
    prepare()
    steps = killed_at(None, work)
    assert steps > 4
    for step in sorted(random.Random(seed).sample(range(1, steps + 1), min(KILLS, steps))):
        prepare()
        assert killed_at(step, work) == -1
        yield step


def cleared(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


def is_tidy(place: Path, *, journal: bool = False) -> bool:
    """Whether there is an index, a file of weights and, if asked for, one journal: that of the index."""
    names = sorted(path.name for path in place.iterdir())
    base = json.loads((place / "model.json").read_text())["checksum"]
    of_journal = [f"acknowledged-{base[:16]}.json", f"journal-{base[:16]}.jsonl"] if journal else []
    wanted = [*of_journal, "model.json"]
    return names[:-1] == wanted and names[-1].startswith("weights-")


def test_a_first_save_that_is_killed_can_be_done_again(tmp_path: Path) -> None:
    place, model = tmp_path / "deep" / "m", fresh()
    for step in kills(lambda: model.save(place), lambda: cleared(tmp_path / "deep"), seed=0):
        if (place / "model.json").exists():  # then the whole model is there
            assert Headstart.load(place).features == model.features, step
        model.save(place)
        assert is_tidy(place), step
    assert np.array_equal(Headstart.load(place).predict().mean, model.predict().mean)


def test_a_save_over_a_model_that_is_killed_keeps_the_old_or_the_new(tmp_path: Path) -> None:
    place, old, new = tmp_path / "m", fresh(), fresh()
    new.add_feature("new", observations={"u1": 3})

    def prepare() -> None:
        cleared(place)
        old.save(place)

    found = set()
    for _ in kills(lambda: new.save(place), prepare, seed=1):
        features = Headstart.load(place).features
        assert features in (old.features, new.features)
        found.add("new" in features)
        old.save(place)
        assert is_tidy(place)
    assert found == {False, True}


def test_a_first_update_that_is_killed_is_there_or_not(tmp_path: Path) -> None:
    place, model = tmp_path / "m", fresh()

    def prepare() -> None:
        cleared(place)
        model.save(place)

    def work() -> None:
        with Headstart.updating(place) as changed:
            changed.add_feature("new")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in kills(work, prepare, seed=3):
            if "new" not in Headstart.load(place).features:
                work()
            with Headstart.updating(place) as changed:
                changed.add_feature("after")
            assert Headstart.load(place).features[-2:] == ["new", "after"]
            assert is_tidy(place, journal=True)


def test_an_acknowledged_update_is_there_after_any_kill(tmp_path: Path) -> None:
    """What was acknowledged stays; the update under way is there whole or not at all."""
    place = tmp_path / "m"
    first = fresh()
    first.add_feature("new")
    first.save(place)
    rows = iter(range(40))
    row = 0

    def work() -> None:
        with Headstart.updating(place) as model:
            model.observe_feature("new", {f"u{row}": 3})

    def prepare() -> None:
        nonlocal row, acknowledged
        row = next(rows)
        acknowledged = Headstart.load(place).feature("new").shots

    acknowledged = 0
    prepare()
    work()  # the first change of a model has more steps than the others
    for _ in kills(work, prepare, seed=2):
        assert Headstart.load(place).feature("new").shots in (acknowledged, acknowledged + 1)
        work()
        assert Headstart.load(place).feature("new").shots == acknowledged + 1
        assert is_tidy(place, journal=True)


@pytest.mark.parametrize("large", [False, True])
def test_a_journal_whose_change_to_a_whole_model_is_killed(
    large: bool, tmp_path: Path, limits: Limits
) -> None:
    """The update is there whole or not at all, and what a killed save leaves is never replayed."""
    limits(journal_changes=1, mapped_from_bytes=0 if large else 2**40)
    place = tmp_path / "m"

    def add(name: str) -> None:
        with Headstart.updating(place) as model:
            model.add_feature(name, observations={"u1": 3})

    def prepare() -> None:
        cleared(place)
        fresh().save(place)
        add("first")

    found = set()
    for step in kills(lambda: add("second"), prepare, seed=9):
        for verify in (True, False):
            features = Headstart.load(place, verify=verify).features[16:]
            assert features in (["first"], ["first", "second"]), step
        found.add(len(features))
        fresh().save(place)  # the base of the journal: it must not be taken up again
        assert Headstart.load(place).features == fresh().features
        assert len(list(place.iterdir())) == 2 + large
    assert found == {1, 2}


def test_a_checkpoint_whose_start_is_killed_can_be_started_again(tmp_path: Path) -> None:
    place, data, settings = tmp_path / "c", table("rating"), Settings()

    def work() -> None:
        with lock_checkpoint(place):
            open_checkpoint(place, data, settings, resume=False)

    for seed, resume in ((3, False), (4, True)):
        for _ in kills(work, lambda: cleared(place), seed=seed):
            with lock_checkpoint(place):
                open_checkpoint(place, data, settings, resume=resume)
                assert [path.name for path in place.iterdir()] == [CHECKPOINT_FACTS]


def test_a_checkpoint_whose_restart_is_killed_can_be_started_again(tmp_path: Path) -> None:
    """Old progress is either there as a whole, with the mark that says of what it is, or goes."""
    place, data, settings, others = tmp_path / "c", table("rating"), Settings(), Settings(random_state=7)

    def prepare() -> None:
        cleared(place)
        with lock_checkpoint(place):
            open_checkpoint(place, data, others, resume=False)
            for part in ("backbone", "adapter"):
                storage.write_bytes(part_file(place, part), b"progress")

    def work() -> None:
        with lock_checkpoint(place):
            open_checkpoint(place, data, settings, resume=False)

    for _ in kills(work, prepare, seed=5):
        if list(place.glob("*.safetensors")):  # never parts of one fit beside the mark of another
            facts = storage.read_json(place / CHECKPOINT_FACTS)
            assert facts["settings"]["random_state"] == 7
        work()
        assert [path.name for path in place.iterdir()] == [CHECKPOINT_FACTS]


def test_files_of_others_are_not_cleaned_up(tmp_path: Path) -> None:
    place, model = tmp_path / "m", fresh()
    model.save(place)
    kept = [".model.json.partial", ".thesis.abcdefgh.partial", "notes.txt", "weights-mine.safetensors"]
    for name in kept:
        (place / name).write_text("precious")
    gone = [".model.json.abcdefgh.partial", ".weights-0123456789abcdef.safetensors.x1y2z3_4.partial"]
    for name in gone:
        (place / name).write_text("left over")
    model.save(place)
    names = {path.name for path in place.iterdir()}
    assert set(kept) <= names
    assert not names & set(gone)


def test_a_killed_command_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """``headstart fit`` killed while it trains; the same command with ``--resume`` ends with a model."""
    data = table("rating")
    lines = ["row,feature,value"]
    for i, j, value in zip(data.row_index, data.feature_index, data.values, strict=True):
        lines.append(f"{data.rows[i]},{data.features[j]},{value}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    out, checkpoint = tmp_path / "m", tmp_path / "m.checkpoint"
    command = ("fit", tmp_path / "t.csv", "--out", out, "--adapter", "chn-bayes", "--quiet")
    fitting = start(*command)
    end = time.monotonic() + 120
    while not (checkpoint / CHECKPOINT_FACTS).exists() and fitting.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    fitting.send_signal(signal.SIGSTOP)
    assert fitting.poll() is None
    # Beside it no other fit may start, nor touch its progress.
    second = run(*command)
    assert second.returncode == 1
    assert "is in use by another fit" in second.stderr
    fitting.send_signal(signal.SIGKILL)
    fitting.communicate()
    again = run(*command, "--resume")
    assert again.returncode == 0, again.stderr
    assert Headstart.load(out).features == list(data.features)
    assert not checkpoint.exists()
