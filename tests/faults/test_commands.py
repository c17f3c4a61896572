"""Commands that are interrupted, meet each other, or would drop what was added."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart import files as storage
from headstart.cli.main import app
from headstart.errors import BusyError, HeadstartError
from headstart.model import Headstart
from headstart.model.fitting import lock_checkpoint, part_file
from headstart.table import Table
from tests.faults.models import fresh, table


@pytest.fixture
def observations(tmp_path: Path) -> Path:
    data, lines = table("rating"), ["row,feature,value"]
    for i, j, value in zip(data.row_index, data.feature_index, data.values, strict=True):
        lines.append(f"{data.rows[i]},{data.features[j]},{value}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return tmp_path / "t.csv"


def run(*arguments: object) -> str:
    """Run a command in this process; an error is raised."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def fit(observations: Path, out: Path, *more: object) -> str:
    return run("fit", observations, "--out", out, "--adapter", "bayes", "--quiet", *more)


def test_what_was_added_since_the_fit_is_not_dropped_unasked(observations: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    fit(observations, out)
    fit(observations, out)  # nothing was added: nothing is lost
    with Headstart.updating(out) as model:
        model.add_feature("Dune 3", observations={"u1": 5})
        model.add_rows({"guest": {"f1": 3}})
        model.observe_feature("f1", {"guest": 3})
    before = (out / "model.json").read_bytes()
    with pytest.raises(HeadstartError) as refusal:
        fit(observations, out)
    for lost in ("1 feature ('Dune 3')", "1 row ('guest')", "1 observation", "--force", str(out)):
        assert lost in str(refusal.value)
    assert (out / "model.json").read_bytes() == before
    assert not (tmp_path / "m.checkpoint").exists()
    fit(observations, out, "--force")
    assert "Dune 3" not in Headstart.load(out).features


def test_what_the_new_table_has_is_not_lost(observations: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    fit(observations, out)
    with Headstart.updating(out) as model:
        model.add_feature("Dune 3", observations={"u1": 5})
    with observations.open("a") as file:
        file.write("\nu1,Dune 3,5\nu2,Dune 3,4")
    fit(observations, out)
    assert Headstart.load(out).feature("Dune 3").shots == 2


def test_a_model_that_cannot_be_read_is_not_replaced_unasked(observations: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    fit(observations, out)
    (out / "model.json").write_text("{")
    with pytest.raises(HeadstartError, match=r"cannot be read, so it is not known.*--force"):
        fit(observations, out)
    fit(observations, out, "--force")
    assert Headstart.load(out).features


def test_what_is_added_while_a_fit_trains_is_not_dropped(
    observations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m"
    fit(observations, out)
    train = Headstart.fit

    def meanwhile(self: Headstart, data: Table, **named: object) -> Headstart:
        fitted = train(self, data, **named)  # type: ignore[arg-type]
        with Headstart.updating(out) as model:
            model.add_feature("meanwhile")
        return fitted

    monkeypatch.setattr(Headstart, "fit", meanwhile)
    with pytest.raises(HeadstartError, match="'meanwhile'"):
        fit(observations, out)
    assert "meanwhile" in Headstart.load(out).features


def test_a_second_fit_to_the_same_place_is_refused(observations: Path, tmp_path: Path) -> None:
    """The first is another process in test_kills; here its lock is held by another thread."""
    out = tmp_path / "m"
    with ThreadPoolExecutor(1) as pool, lock_checkpoint(tmp_path / "m.checkpoint"):
        second = pool.submit(fit, observations, out)
        with pytest.raises(BusyError, match=r"m\.checkpoint is in use by another fit"):
            second.result()
    assert not out.exists()
    fit(observations, out)


@pytest.mark.parametrize("progress", [False, True])
def test_an_interrupted_fit_says_truly_whether_it_can_be_resumed(
    progress: bool, observations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C comes while the first is being answered, perhaps before any progress was kept."""

    def interrupted(self: Headstart, data: Table, *, checkpoint: Path, resume: bool) -> None:
        with lock_checkpoint(checkpoint):
            storage.write_json(checkpoint / "fit.json", {})
            if progress:
                storage.write_bytes(part_file(checkpoint, "adapter"), b"progress")
            raise KeyboardInterrupt

    monkeypatch.setattr(Headstart, "fit", interrupted)
    with pytest.raises(BaseException, match="interrupted") as stopped:
        fit(observations, tmp_path / "m")
    assert ("with --resume to continue" in str(stopped.value)) == progress
    assert ("start anew" in str(stopped.value)) == (not progress)


def test_a_surprise_is_printed_as_a_note(tmp_path: Path) -> None:
    model = fresh("real")
    random = np.random.default_rng(0)
    model.add_feature("new", observations={f"u{i}": 3 + 0.1 * random.normal() for i in range(20)})
    model.save(tmp_path / "m")
    (tmp_path / "o.csv").write_text("row,value\nu30,3.0\nu31,1000000\n")
    said = run("observe-feature", tmp_path / "m", "new", tmp_path / "o.csv")
    assert said.count("note: feature 'new': the value 1e+06 at row 'u31'") == 1
    assert "'new' now has 22 observations" in said
    (tmp_path / "o.csv").write_text("row,value\nu31,3.0\n")
    assert "note" not in run("observe-feature", tmp_path / "m", "new", tmp_path / "o.csv")
