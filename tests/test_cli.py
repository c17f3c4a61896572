"""The command line as a user runs it: files in, files out, one clear line when something is wrong."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import multiprocessing
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from headstart import __version__
from headstart.cli import main
from headstart.cli import output as printing
from headstart.cli.main import app
from headstart.cli.research import DATASET_NAMES, EXPERIMENT_NAMES, _show_story
from headstart.datasets import DOWNLOADS
from headstart.errors import ModelFileError
from headstart.evaluate import Results
from headstart.evaluate.results import Curve
from headstart.experiments.demo import FilmPredictions
from headstart.experiments.presets import ALL, EXPERIMENTS
from headstart.model import Headstart
from tests.model.conftest import able, ratings_table
from tests.stand_ins import install_encoders, write_weights


def run(
    *arguments: object, cwd: Path | None = None, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which saves seconds of imports, with streams of this encoding."""
    argv, code = ["headstart", *map(str, arguments)], 0
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, newline="", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    stdout, stderr = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))
    return subprocess.CompletedProcess(argv, code, stdout, stderr)


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    program = "import torch; torch.set_num_threads(1); from headstart.cli import main; main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    table = ratings_table()
    with (path / "ratings.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "film", "stars"])
        for i, j, value in zip(table.row_index, table.feature_index, table.values, strict=True):
            writer.writerow([table.rows[i], table.features[j], value])
    with (path / "films.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["film", "genre", "year"])
        for name, line in zip(table.features, table.metadata.to_pylist(), strict=True):
            writer.writerow([name, line["genre"], line["year"]])
    (path / "first.csv").write_text("user,stars\nu1,5\nu2,3\n")
    (path / "twice.csv").write_text((path / "ratings.csv").read_text() + "u1,new,1\nu1,new,5\n")
    (path / "empty.txt").write_text("\n")
    return path


COLUMNS = ("--row", "user", "--feature", "film", "--value", "stars")


def test_the_whole_way(folder: Path) -> None:
    model = folder / "m.headstart"
    fitted = run("fit", folder / "ratings.csv", "--metadata", folder / "films.csv", *COLUMNS, "--out", model)
    assert fitted.returncode == 0, fitted.stderr
    assert "24 films, 60 users" in fitted.stdout  # as the columns are called
    assert "rating:1:5" in fitted.stdout  # what was inferred is said
    assert "Training the backbone" in fitted.stderr
    assert not (folder / "m.headstart.checkpoint").exists()

    metadata = json.dumps({"genre": "drama", "year": 2001})
    first = ("--observations", folder / "first.csv", "--row", "user", "--value", "stars")
    added = run("add-feature", model, "Dune, 3", "--metadata", metadata, *first)
    assert added.returncode == 0, added.stderr
    assert "added 'Dune, 3' (rating:1:5) with 2 observations" in added.stdout

    said = folder / "said.CSV"
    predicted = run(
        "predict", model, "--rows", "u1,u2", "--features", "Dune, 3", "--features", "f1", "--out", said
    )
    assert predicted.returncode == 0, predicted.stderr
    lines = list(csv.DictReader(said.open()))
    assert [(line["row"], line["feature"]) for line in lines] == [
        ("u1", "Dune, 3"), ("u1", "f1"), ("u2", "Dune, 3"), ("u2", "f1"),
    ]  # fmt: skip
    held = Headstart.load(model).predict(["u1", "u2"], ["Dune, 3", "f1"])
    np.testing.assert_allclose([float(line["mean"]) for line in lines], held.mean.ravel())

    (folder / "new.csv").write_text("user,film,stars\nx,f1,5\nx,f2,4\ny,f1,1\n")
    everything = run(
        "predict", model, "--new-rows", folder / "new.csv", *COLUMNS, "--out", folder / "said.parquet"
    )
    assert everything.returncode == 0, everything.stderr
    assert len(pq.read_table(folder / "said.parquet")) == 2 * 25

    shown = run("predict", model, "--rows", "u1", "--features", "f1")
    assert "90% interval" in shown.stdout
    info = run("info", model)
    assert "25, 1 of them added after fit" in info.stdout
    assert re.search(
        r"chosen\s+bayes(, with known heads)?(, shrunk to row means)?(, with neighbours)?, judged on ",
        " ".join(info.stdout.split()),
    )
    assert "error by shots" in info.stdout
    assert "genre: category, year: number" in info.stdout

    asked = run("suggest", model, "Dune, 3", "-n", "3")
    assert asked.returncode == 0, asked.stderr
    rows = asked.stdout.split()
    assert rows == Headstart.load(model).suggest("Dune, 3", n=3)
    (folder / "more.csv").write_text("user,stars\n" + "".join(f"{row},4\n" for row in rows))
    more = (folder / "more.csv", "--row", "user", "--value", "stars")
    observed = run("observe-feature", model, "Dune, 3", *more)
    assert observed.returncode == 0, observed.stderr
    assert "'Dune, 3' now has 5 observations" in observed.stdout
    again = run("suggest", model, "Dune, 3", "-n", "1", "--rows", ",".join([*rows, "u7"]))
    assert again.stdout.split() == ["u7"]  # those observed by now are left out


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.headstart"
    able().save(path)
    return path


FIT = ("fit", "{f}/ratings.csv", *COLUMNS, "--out", "{f}/x")
# The file does not exist: any other mistake must be reported before the file is read.
EARLY = ("fit", "{f}/nowhere.csv", "--out")
BENCHMARK = ("benchmark", "{f}/nowhere.csv", "--out", "{f}/x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "{f}/nowhere.csv", "--out", "{f}/x"], "there is no file {f}/nowhere.csv"),
        (
            ["fit", "{f}/ratings.csv", "--out", "{f}/x"],
            "{f}/ratings.csv has no column 'row' (--row row); its columns are 'user', 'film', 'stars'",
        ),
        ([*EARLY, "{f}/x", "--backbone", "pvea"], "unknown backbone 'pvea'; did you mean 'pvae'?"),
        ([*EARLY, "{f}/x", "--adapter", "chnn"], "unknown method 'chnn'; did you mean 'chn'?"),
        (
            [*EARLY, "{f}/x", "--kind", "ratng"],
            "'ratng' is not a kind (binary, rating, real",
        ),
        ([*EARLY, "{f}/x", "--duplicates", "first"], "duplicates must be one of error, last, mean"),
        (
            [*EARLY, "{f}/x", "--metadata-type", "year"],
            "must be NAME=TYPE, such as year=category; got 'year'",
        ),
        ([*EARLY, "{f}/ratings.csv"], "{f}/ratings.csv is a file; a model is saved as a folder"),
        ([*EARLY, "{f}"], "{f} holds other things ('empty.txt', "),
        ([*EARLY, "."], "more) and no model; name another folder"),
        ([*FIT, "--kind", "binary"], "must be 0 or 1 (the feature's kind is binary)"),
        ([*FIT, "--form", "broad"], "form must be 'auto', 'long' or 'wide'; got 'broad'"),
        (
            [*FIT, "--metadata", "{f}/films.csv", "--metadata-type", "yaer=date"],
            "metadata has no column 'yaer'; did you mean 'year'?",
        ),
        (
            ["fit", "{f}/twice.csv", *COLUMNS, "--out", "{f}/x"],
            "row 'u1', feature 'new' is observed twice, as 1 and 5; "
            "correct the data or use --duplicates last or --duplicates mean",
        ),
        (["add-feature", "{m}", "f1"], "feature 'f1' is already in the model"),
        (["add-feature", "{m}", "[/f1]", "--kind", "[bold]"], "'[bold]' is not a kind"),
        (["add-feature", "{m}", "new", "--metadata", "{{broken"], "--metadata is neither a file nor JSON"),
        (["add-feature", "{m}", "new", "--metadata", "{{" * 300], "--metadata is neither a file nor JSON"),
        (["add-feature", "{m}", "new", "--metadata", "[1]"], "--metadata must be a JSON object"),
        (
            ["add-feature", "{m}", "new", "--observations", "{f}/first.csv"],
            "{f}/first.csv has no column 'row' (--row row); its columns are 'user', 'stars'",
        ),
        (["add-feature", "{f}/nowhere", "new"], "there is no such folder"),
        (["predict", "{m}", "--rows", "nobody"], "unknown row 'nobody'"),
        (["predict", "{m}", "--rows", "[/x]"], "unknown row '[/x]'"),
        (["predict", "{m}", "--rows", "n" * 300], "unknown row 'nnn"),
        (["predict", "{m}", "--rows", ","], "--rows gives no name; leave it out to use all"),
        (["predict", "{m}", "--features", "{f}/empty.txt"], "--features gives no name"),
        (["predict", "{m}", "--rows", "u1", "--new-rows", "{f}/first.csv"], "either --rows or --new-rows"),
        (["predict", "{m}", "--out", "{f}/x.xls"], "--out must end in .csv or .parquet; got 'x.xls'"),
        (["predict", "{m}", "--out", "nodir/o.csv"], "the folder nodir does not exist"),
        (["predict", "{m}", "--rows", "u1", "--level", "7"], "between 0 and 1"),
        (["info", "{f}"], "it has no model.json"),
        ([*EARLY, "{f}/x", "--meta-share", "1.5"], "'meta_share': Input should be less than 1; got 1.5"),
        ([*EARLY, "{f}/x", "--meta-share", "0.5"], "--meta-share goes with an adapter of your choice"),
        ([*BENCHMARK, "--test-share", "1.5"], "'test_share': Input should be less than 1; got 1.5"),
        ([*BENCHMARK, "--test-rows", "1"], "'test_rows': Input should be less than 1; got 1.0"),
        (
            [*BENCHMARK, "--test-rows", "-1"],
            "'test_rows': Input should be greater than or equal to 0; got -1.0",
        ),
        ([*BENCHMARK, "--meta-share", "0"], "'meta_share': Input should be greater than 0; got 0.0"),
        ([*BENCHMARK, "--shots", "a,b,c"], "--shots must be whole numbers separated by commas; got 'a,b,c'"),
        ([*BENCHMARK, "--methods", "chn,chnn"], "unknown method 'chnn'; did you mean 'chn'?"),
        ([*BENCHMARK, "--metadata-type", "=date"], "must be NAME=TYPE, such as year=category; got '=date'"),
        (["fetch", "movielens-1m", "--to", "{f}"], "To agree to them, add --agree"),
    ],
)
def test_errors_are_one_clear_line(folder: Path, saved: Path, arguments: list[str], message: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    done = run(*(argument.format(f=folder, m=saved) for argument in arguments), cwd=folder)
    assert message.format(f=folder) in done.stderr
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [["predict", "m", "--level", "[/x]"], ["ft"], ["fit"], ["fit", "a.csv", "--out", "x", "--seed", "-1"]],
)
def test_wrong_usage_has_its_own_exit_status(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stderr


def test_a_meta_share_keeps_features_for_the_adapter(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.headstart"
    share = ("--adapter", "mean", "--meta-share", "0.25", "--quiet")
    done = run("fit", folder / "ratings.csv", *COLUMNS, "--out", out, *share)
    assert done.returncode == 0, done.stderr
    assert Headstart.load(out).meta_share == 0.25
    info = run("info", out).stdout
    assert "mean" in info
    assert "chosen" not in info
    assert sum(Headstart.load(out).feature(name).in_backbone for name in Headstart.load(out).features) == 18


def test_a_benchmark_takes_its_files_as_fit_does(folder: Path, tmp_path: Path) -> None:
    files = (folder / "ratings.csv", "--metadata", folder / "films.csv", *COLUMNS)
    settings = ("--methods", "mean,mean-head", "--shots", "0,4", "--splits", "1", "--by", "year")
    shares = ("--test-share", "0.25", "--meta-share", "0.5", "--quiet")
    done = run("benchmark", *files, *settings, *shares, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "RMSE (lower is better)" in done.stdout
    assert "New rows, by their observations: RMSE" in " ".join(done.stdout.split())
    assert "results.json, kshot.png, report.html and results.md" in " ".join(done.stdout.split())
    results = Results.load(tmp_path / "out" / "results.json")
    assert (results.methods, results.shots) == (["mean", "mean-head"], [0, 4])
    assert (results.settings["test_share"], results.settings["meta_share"]) == (0.25, 0.5)
    parts = results.data["splits"][0]
    assert (parts["train"], parts["meta_train"], parts["meta_test"]) == (9, 9, 6)
    assert results.settings["test_rows"] == 0.1
    assert results.row_shots[0] == 0
    again = run("benchmark", *files, *settings, *shares, "--test-rows", "0", "--out", tmp_path / "none")
    assert again.returncode == 0, again.stderr
    assert "New rows" not in again.stdout
    assert Results.load(tmp_path / "none" / "results.json").row_shots == []


@pytest.mark.parametrize("command", ["fit", "benchmark"])
def test_features_are_only_ever_names(command: str) -> None:
    done = run(command, "ratings.csv", "--out", "x", "--features", "films.csv")
    assert done.returncode == 2
    assert re.search("No such option:? '?--features", " ".join(done.stderr.split()))


def test_debug_shows_the_traceback(folder: Path) -> None:
    with pytest.raises(ModelFileError):
        run("--debug", "info", folder)


def test_version() -> None:
    done = start("--version")
    assert done.communicate(timeout=120) == (f"headstart {__version__}\n", "")
    assert done.returncode == 0


@pytest.mark.parametrize("command", [command.name for command in app.registered_commands])
def test_help_teaches_with_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"headstart {command}" in " ".join(done.stdout.split())
    assert "Example" in done.stdout


def test_the_help_names_all_data_sets_and_experiments() -> None:
    assert tuple(DOWNLOADS) == DATASET_NAMES
    assert tuple(EXPERIMENTS) == EXPERIMENT_NAMES
    assert ALL == "all"


# --- interrupted ------------------------------------------------------------------------------------


def test_an_interrupted_fit_says_how_to_go_on(folder: Path, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "m.headstart", tmp_path / "m.headstart.checkpoint"
    arguments = ("fit", folder / "ratings.csv", *COLUMNS, "--out", out, "--quiet")
    fitting = start(*arguments)
    end = time.monotonic() + 120
    while not (checkpoint / "fit.json").exists() and time.monotonic() < end:
        time.sleep(0.01)
    fitting.send_signal(signal.SIGINT)
    stdout, stderr = fitting.communicate(timeout=120)
    assert fitting.returncode == 130
    expected = "interrupted before any progress was kept; run the same command again to start anew\n"
    if list(checkpoint.glob("*.safetensors")):
        expected = "interrupted; run the same command with --resume to continue\n"
    assert stderr == expected
    assert stdout == ""
    assert not out.exists()
    assert checkpoint.exists()

    resumed = run(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr == ""
    assert not checkpoint.exists()

    checkpoint.mkdir()
    (checkpoint / "fit.json").write_text("{}")
    again = run(*arguments, "--adapter", "mean")
    assert again.returncode == 0, again.stderr
    assert again.stderr == f"note: starting from scratch; the interrupted fit in {checkpoint} is deleted\n"


# --- at once ----------------------------------------------------------------------------------------


def _add_feature(model: Path, name: str) -> None:
    sys.exit(run("add-feature", model, name).returncode)


def test_features_added_at_once_are_all_kept(saved: Path) -> None:
    names = ["at once 1", "at once 2", "at once 3"]
    processes = multiprocessing.get_context("fork")
    adding = [processes.Process(target=_add_feature, args=(saved, name)) for name in names]
    for process in adding:
        process.start()
    for process in adding:
        process.join(120)
        assert process.exitcode == 0
    assert set(names) <= set(Headstart.load(saved).features)


# --- options that messages point to -----------------------------------------------------------------


def test_what_messages_advise_can_be_done(folder: Path, tmp_path: Path) -> None:
    done = run(
        "fit", folder / "twice.csv", "--metadata", folder / "films.csv", *COLUMNS, "--out", tmp_path / "m",
        "--duplicates", "last", "--form", "long", "--metadata-type", "year=category",
        "--metadata-type", "genre=ignore", "--adapter", "mean",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of them contradictory (--duplicates last)" in done.stdout
    assert "genre: ignore, year: category" in done.stdout
    assert "genre: ignore, year: category" in run("info", tmp_path / "m").stdout


# --- names with square brackets ---------------------------------------------------------------------


def test_names_are_shown_as_they_are(saved: Path) -> None:
    for name in ("[/x]", "[bold]hey", ":smile:"):
        added = run("add-feature", saved, name)
        assert added.returncode == 0, added.stderr
        assert f"added {name!r}" in added.stdout
        assert name in run("predict", saved, "--rows", "u1", "--features", name).stdout
        assert name in run("info", saved).stdout


def test_tables_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    printing.show(["[/head]"], [["[/cell]"]], title="[/title]")
    printing.say("[/said]")
    story = FilmPredictions("[/film]", ["[/user]"], [4.0], {2: [(3.5, 0.5)]}, {2: 0.9}, 3)
    _show_story(story, Curve([2], [0.8], [0.0]))
    printed = capsys.readouterr().out
    assert set(re.findall(r"\[/\w+\]", printed)) >= {"[/head]", "[/cell]", "[/title]", "[/said]"}
    assert "[/film]: predicted" in printed
    assert "[/user]" in printed


def test_a_text_column_takes_a_sentence_encoder_by_name_or_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a=b:c"
    for folder_of_weights in (tmp_path / "downloaded", place):
        write_weights(folder_of_weights, b"weights")
    install_encoders(
        monkeypatch, tmp_path / "downloaded", lambda: lambda texts: [[len(text), 1.0] for text in texts]
    )
    for number, spec in enumerate(("all-MiniLM-L6-v2", str(place))):
        model = tmp_path / f"{number}.headstart"
        fitted = run(
            "fit", folder / "ratings.csv", "--metadata", folder / "films.csv", *COLUMNS, "--out", model,
            "--adapter", "bayes", "--metadata-type", f"genre=text:{spec}",
        )  # fmt: skip
        assert fitted.returncode == 0, fitted.stderr
        assert f"genre: text ({spec})" in fitted.stdout.replace("\n", "")
        columns = json.loads((model / "model.json").read_text())["metadata"]["columns"]
        assert columns[0]["encoder"] == spec
    added = run("add-feature", model, "new", "--metadata", '{"genre": "a western"}')
    assert added.returncode == 0, added.stderr


def test_a_sentence_encoder_that_is_not_there_is_an_error(folder: Path, tmp_path: Path) -> None:
    failed = run(
        "fit", folder / "ratings.csv", "--metadata", folder / "films.csv", *COLUMNS, "--out", tmp_path / "m",
        "--metadata-type", f"genre=text:{tmp_path}/none",
    )  # fmt: skip
    assert failed.returncode == 1
    assert "there is no folder" in failed.stderr


# --- what a terminal cannot show ----------------------------------------------------------------------


def test_an_ascii_terminal_gets_replacements(saved: Path) -> None:
    assert run("add-feature", saved, "Am\u00e9lie").returncode == 0
    shown = run("predict", saved, "--rows", "u1", "--features", "Am\u00e9lie", encoding="ascii")
    assert shown.returncode == 0, shown.stderr
    assert "Am?lie" in shown.stdout
    again = run("add-feature", saved, "Am\u00e9lie", encoding="ascii")
    assert again.returncode == 1
    assert again.stderr.startswith("error: feature 'Am\\xe9lie' is already in the model")


# --- reading files as they come -----------------------------------------------------------------------


def test_a_spreadsheet_export_is_read(folder: Path, tmp_path: Path) -> None:
    """Semicolons, decimal commas, another encoding, and spaces around the names of columns."""
    lines = (folder / "ratings.csv").read_text().replace(".0", ",0").replace("f1\n", "caf\u00e9\n")
    export = lines.replace("user,film,stars", " user ; film;stars ").replace("\n", ";\n")
    rows = [line.rstrip(";").replace(",", ";", 2) for line in export.splitlines()]
    (tmp_path / "export.csv").write_bytes("\n".join(rows).encode("latin-1"))
    arguments = ("fit", tmp_path / "export.csv", *COLUMNS, "--adapter", "mean")
    refused = run(*arguments, "--out", tmp_path / "m")
    assert "use --decimal ," in refused.stderr
    done = run(
        *arguments, "--out", tmp_path / "m", "--decimal", ",", "--encoding", "latin-1",
        "--kind", "real", "--kind", "f1=rating:1:5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds = {name: Headstart.load(tmp_path / "m").feature(name).kind.name for name in ("f1", "f2")}
    assert kinds == {"f1": "rating", "f2": "real"}


def test_what_was_inferred_can_be_pasted_back(folder: Path, tmp_path: Path) -> None:
    arguments = ("--adapter", "mean", "--out", tmp_path / "m")
    columns = ("--metadata", folder / "films.csv", *COLUMNS)
    done = run("fit", folder / "ratings.csv", *columns, *arguments)
    assert done.returncode == 0, done.stderr
    assert "pass " not in done.stdout
    options = " ".join(re.findall(r"\((--[^)]*)\)", done.stdout))
    assert options == "--kind rating:1:5 --metadata-type genre=category --metadata-type year=number"
    again = run("fit", folder / "ratings.csv", *columns, *arguments, *shlex.split(options))
    assert again.returncode == 0, again.stderr
    assert "features inferred" not in again.stdout
