"""The commands by which rows live, and that write out or fit anew what a model holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headstart.model import Headstart
from headstart.table import Table
from tests.model.conftest import able
from tests.test_cli import run

COLUMNS = ("--row", "user", "--feature", "film", "--value", "stars")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    able().save(tmp_path / "m")
    return tmp_path / "m"


def test_rows_come_observe_and_go(model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("user,film,stars\nx,f1,5\nx,f2,1\ny,f1,\n")
    added = run("add-rows", model, tmp_path / "new.csv", *COLUMNS)
    assert added.returncode == 0, added.stderr
    assert "added 2 rows; the model has 202" in added.stdout
    (tmp_path / "more.csv").write_text("user,film,stars\nx,f3,4\nu1,f1,2\n")
    seen = run("observe", model, tmp_path / "more.csv", *COLUMNS)
    assert seen.returncode == 0, seen.stderr
    assert "2 observations taken; 2 features and 2 rows changed" in seen.stdout
    one = run("observe", model, tmp_path / "more.csv", *COLUMNS, "--update", "rows")
    assert "0 features and 2 rows changed" in one.stdout
    gone = run("remove", model, "--rows", "x,y", "--features", "f5")
    assert "removed 1 feature and 2 rows" in gone.stdout, gone.stderr
    (tmp_path / "gone.csv").write_text("row,value\nx,4\n")
    loaded = Headstart.load(model)
    assert "x" not in loaded.rows
    assert "f5" not in loaded.features
    for wrong, message in (
        (("observe", model, tmp_path / "new.csv", *COLUMNS), "headstart add-rows adds new"),
        (("remove", model), "--features or --rows"),
        (("observe", model, tmp_path / "more.csv"), "row"),
        (
            ("observe-feature", model, "f1", tmp_path / "gone.csv"),
            "a context can only hold rows the model knows",
        ),
        (("add-rows", model, tmp_path / "more.csv", *COLUMNS), "row 'u1' is already in the model"),
    ):
        said = run(*wrong)
        assert said.returncode == 1
        assert message in said.stderr


def test_one_row_is_added_and_observed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "first.csv").write_text("film,stars\nf1,5\nf2,1\n")
    (tmp_path / "more.csv").write_text("feature,value\nf2,2\nf3,4\n")
    columns = ("--feature", "film", "--value", "stars")
    expected = Headstart.load(model)
    added = run("add-row", model, "Ann", "--observations", tmp_path / "first.csv", *columns)
    assert added.returncode == 0, added.stderr
    assert "added 'Ann' with 2 observations; the model has 201 rows" in added.stdout
    assert run("add-row", model, "Bob", "--quiet").stdout == ""
    observed = run("observe-row", model, "Ann", tmp_path / "more.csv")
    assert observed.returncode == 0, observed.stderr
    assert "'Ann' now has 3 observations" in observed.stdout
    loaded = Headstart.load(model)
    expected.add_row("Ann", observations={"f1": 5, "f2": 1})
    expected.observe_row("Ann", {"f2": 2, "f3": 4})
    assert loaded.row("Ann").observations == {"f1": 5, "f2": 2, "f3": 4}
    assert loaded.row("Bob").observations == {}
    cells = (["Ann", "u1"], ["f1", "f4"])
    np.testing.assert_allclose(loaded.predict(*cells).mean, expected.predict(*cells).mean, atol=1e-6)


def test_wrong_observations_of_a_row_are_named(model: Path, tmp_path: Path) -> None:
    for name, lines in {
        "twice": "f1,5\nf1,4",
        "endless": "f1,inf",
        "unknown": "f99,4",
        "good": "f1,4",
    }.items():
        (tmp_path / f"{name}.csv").write_text(f"feature,value\n{lines}\n")
    for arguments, message in (
        (("observe-row", model, "u1", tmp_path / "twice.csv"), "feature 'f1' has more than one value"),
        (("observe-row", model, "u1", tmp_path / "endless.csv"), "the value of feature 'f1' is inf"),
        (("observe-row", model, "u1", tmp_path / "unknown.csv"), "unknown feature 'f99'"),
        (("observe-row", model, "nobody", tmp_path / "good.csv"), "unknown row 'nobody'"),
        (("observe-row", model, "u1", tmp_path / "twice.csv", "--feature", "film"), "(--feature film)"),
        (("observe-row", model, "u1", tmp_path / "good.csv", "--update", "all"), "update"),
        (("add-row", model, "u1"), "row 'u1' is already in the model"),
        (("add-row", model, "Ann", "--metadata", "[1]"), "--metadata must be a JSON object"),
    ):
        failed = run(*arguments)
        assert failed.returncode == 1
        assert message in failed.stderr


def test_a_model_is_written_out_and_fitted_again(model: Path, tmp_path: Path) -> None:
    out, films = tmp_path / "all.parquet", tmp_path / "films.csv"
    wrote = run("export", model, "--out", out, "--metadata-out", films)
    assert wrote.returncode == 0, wrote.stderr
    assert "fit it with --kind rating:1:5" in wrote.stdout
    table = Table.read(out, metadata=films, kinds="rating:1:5")
    assert len(table) == len(able().table())
    assert run("export", model, "--out", tmp_path / "all.txt").returncode == 1
    refitted = run("refit", model, "--out", tmp_path / "again")
    assert refitted.returncode == 0, refitted.stderr
    assert "60 features, 200 rows" in refitted.stdout
    quiet = run("refit", model, "--out", tmp_path / "again", "--quiet")
    assert (quiet.returncode, quiet.stdout) == (0, ""), quiet.stderr
    assert sorted(Headstart.load(tmp_path / "again").features) == sorted(able().features)


def test_commands_are_silent_or_write_to_standard_output(model: Path, tmp_path: Path) -> None:
    for name, text in {"new": "x,f1,5", "more": "x,f3,4", "one": "u1,f1,5"}.items():
        (tmp_path / f"{name}.csv").write_text(f"row,feature,value\n{text}\n")
    (tmp_path / "named.csv").write_text("row,value\nu2,4\n")
    for arguments in (
        ("add-rows", model, tmp_path / "new.csv"),
        ("observe", model, tmp_path / "more.csv"),
        ("observe-feature", model, "f1", tmp_path / "named.csv"),
    ):
        said = run(*arguments, "--quiet")
        assert (said.returncode, said.stdout) == (0, ""), said.stderr
    asked = run("recommend", model, "x", "-n", "60", "--format", "csv", "--quiet")
    assert asked.returncode == 0, asked.stderr
    named = asked.stdout
    assert '"f2"' in named
    assert '"f1"' not in named  # observed when it was added
    assert '"f3"' not in named
    told = run("explain", model, "x", "f2", "--format", "csv", "--quiet")
    assert told.returncode == 0, told.stderr
    assert '"observation","f1"' in told.stdout
    removed = run("remove", model, "--rows", "x", "--quiet")
    assert (removed.returncode, removed.stdout) == (0, ""), removed.stderr
    wrote = run("export", model, "--out", "-", "--quiet")
    lines = wrote.stdout.splitlines()
    assert lines[0] == '"row","feature","value"'
    assert len(lines) == 1 + len(Headstart.load(model).table())
    refused = run("export", model, "--out", tmp_path / "a.csv", "--metadata-out", tmp_path / "b.txt")
    assert refused.returncode == 1
    assert "--metadata-out must end in" in refused.stderr


def test_observations_age_on_the_command_line(tmp_path: Path) -> None:
    table = able().table()
    lines = ["user,film,stars,when"]
    for cell in range(0, len(table), 4):
        row, feature = table.rows[table.row_index[cell]], table.features[table.feature_index[cell]]
        lines.append(f"{row},{feature},{table.values[cell]:g},2024-05-{1 + cell % 28:02d}")
    (tmp_path / "dated.csv").write_text("\n".join(lines) + "\n")
    fit = ("fit", tmp_path / "dated.csv", *COLUMNS, "--kind", "rating:1:5", "--adapter", "bayes", "--quiet")
    for options, message in (
        (("--half-life", "soon", "--time", "when"), "--half-life"),
        (("--half-life", "0", "--time", "when"), "--half-life must be more than 0"),
        (("--half-life", "30 days"), "--time timestamp"),
        (("--half-life", "30 days", "--time", "wen"), "no column 'wen'"),
    ):
        said = run(*fit, *options, "--out", tmp_path / "m")
        assert said.returncode == 1
        assert message in said.stderr
    said = run(*fit, "--half-life", "30 days", "--time", "when", "--out", tmp_path / "m")
    assert said.returncode == 0, said.stderr
    model = Headstart.load(tmp_path / "m")
    assert model.half_life == 30 * 86400
    row, feature = model.rows[0], model.features[0]
    (tmp_path / "more.csv").write_text(f"user,film,stars,when\n{row},{feature},5,2024-06-01T12:00:00\n")
    observe = ("observe", tmp_path / "m")
    late = run(*observe, tmp_path / "more.csv", *COLUMNS)
    assert late.returncode == 1
    assert "'time'" in late.stderr
    said = run(*observe, tmp_path / "more.csv", *COLUMNS, "--time", "when")
    assert said.returncode == 0, said.stderr
    (tmp_path / "one.csv").write_text(f"row,value\n{row},4\n")
    observe = ("observe-feature", tmp_path / "m", feature, tmp_path / "one.csv")
    none = run(*observe)
    assert "--time" in none.stderr
    said = run(*observe, "--time", "2024-06-03")
    assert said.returncode == 0, said.stderr
    out = tmp_path / "all.parquet"
    assert run("export", tmp_path / "m", "--out", out).returncode == 0
    again = Table.read(out, time="time", kinds="rating:1:5")
    assert again.times is not None
    assert again.times.max() == 1717372800
    assert run("refit", tmp_path / "m", "--quiet").returncode == 0
    assert Headstart.load(tmp_path / "m").table().times.max() == 1717372800


def test_changes_are_written_to_a_journal_and_checked(model: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("user,film,stars\nu2,f3,4\nu1,f1,2\n")
    weights = next(model.glob("weights-*")).stat().st_mtime_ns
    for arguments in (
        ("observe", model, tmp_path / "more.csv", *COLUMNS),
        ("remove", model, "--features", "f5"),
        ("add-feature", model, "newest"),
    ):
        assert run(*arguments).returncode == 0
    assert next(model.glob("weights-*")).stat().st_mtime_ns == weights  # nothing else was written
    said = run("check", model)
    assert said.returncode == 0, said.stderr
    assert "is whole" in said.stdout
    assert "3 changes in its journal" in said.stdout
    journal = next(model.glob("journal-*"))
    lines = journal.read_bytes()
    journal.write_bytes(lines + b"\0" * 100)
    said = run("check", model)
    assert said.returncode == 0
    assert "note: " in said.stderr
    assert "ends with 100 bytes that are not a change" in " ".join(said.stderr.split())
    journal.write_bytes(lines[:-1])
    said = run("check", model)
    assert said.returncode == 1
    assert "is cut short: 3 changes were acknowledged, and 2 of them" in " ".join(said.stderr.split())
    journal.write_bytes(lines)
    journal.write_bytes(journal.read_bytes().replace(b'"update"', b'"UPDATE"'))
    said = run("check", model)
    assert said.returncode == 1
    assert "is damaged: its line 1 does not match its checksum" in " ".join(said.stderr.split())
