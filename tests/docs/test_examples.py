"""What the documents say is true: examples run, commands and links exist."""

from __future__ import annotations

import pkgutil
import re
import shlex
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from headstart.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [
    "README.md",
    "docs/guide.md",
    *(
        f"docs/tutorials/{name}.md"
        for name in (
            "films",
            "question_bank",
            "survey",
            "catalogue_week",
            "multiple_choice",
            "clicks",
            "language_models",
        )
    ),
]
# The examples are tested, not how well their models predict.
SHORT = "Headstart(metatraining={'epochs': 5})"
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(path: Path) -> list[tuple[str, str, int]]:
    """The fenced blocks of a document: language, content, and the line the content begins at."""
    text = path.read_text(encoding="utf-8")
    return [
        (block[1], block[2], text[: block.start(2)].count("\n"))
        for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    ]


def write_files(folder: Path) -> None:
    """Write the files that the example of README.md reads: made-up ratings of 60 films by 80 users."""
    random = np.random.default_rng(0)
    users = ["ann", "ben", "cem", "dora", "eva", *(f"user {i}" for i in range(75))]
    likes, quality = random.normal(size=80), random.normal(size=60)
    films = [f"film {i},{'sci-fi' if i % 2 else 'romance'},{1966 + i}" for i in range(60)]
    (folder / "films.csv").write_text("\n".join(["film,genre,year", *films]))
    lines = ["user,film,stars"]
    for user, film in zip(*np.nonzero(random.random((80, 60)) < 0.3), strict=True):
        stars = 3.4 + likes[user] * (2 * (film % 2) - 1) + 0.6 * quality[film]
        lines.append(f"{users[user]},film {film},{np.clip(np.round(stars), 1, 5):g}")
    (folder / "ratings.csv").write_text("\n".join(lines))


def run_commands(code: str) -> None:
    """Run the commands of a block but ``benchmark``, which takes a minute."""
    for line in code.replace("\\\n", " ").splitlines():
        command, *words = shlex.split(line)
        assert command == "headstart", line
        if words[0] != "benchmark":
            answer = CliRunner().invoke(app, words)
            assert answer.exit_code == 0, (line, answer.output, answer.exception)


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_examples_run_and_print_what_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples of a document are one script; a block of text after one is what it prints."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    names: dict[str, object] = {}
    every = blocks(ROOT / name)
    for (language, code, line), following in zip(every, [*every[1:], ("", "", 0)], strict=True):
        if language == "bash" and "tutorials" in name:
            run_commands(code)
        if language == "python":
            code = code.replace("Headstart()", SHORT)
            # Blank lines before the code, so that a traceback shows the document's own line.
            exec(compile("\n" * line + code, str(ROOT / name), "exec"), names)
            printed = capsys.readouterr().out
            if following[0] == "text":
                assert printed == following[1]
    assert names


@every_document
def test_commands_and_their_options_exist(path: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^ *headstart +([a-z].*)$", text, re.M):
        command, *words = shlex.split(line, comments=True)
        assert command in commands, line
        found = commands[command]
        while hasattr(found, "commands"):  # a group, such as token
            assert words[0] in found.commands, line
            found, words = found.commands[words[0]], words[1:]
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, line


@every_document
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, heading = target.partition("#")
        document = (path.parent / file) if file else path
        assert document.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.M)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@every_document
def test_brackets_name_a_reference_only_in_the_reference(path: Path) -> None:
    """Two pairs of brackets in a row are a link to an object of the package: ``[x][name]``."""
    text = re.sub(r"^```.*?^```$|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\[([^]]*)\]", text):
        assert pkgutil.resolve_name(target), target


def backticked(path: Path) -> list[str]:
    """The words in backticks outside of fenced blocks."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text)]


@every_document
def test_named_source_files_exist(path: Path) -> None:
    folders = [ROOT, ROOT / "src/headstart", *(ROOT / "benchmarks").iterdir()]
    for name in backticked(path):
        if re.fullmatch(r"[\w/]+/\w+\.py", name):
            assert any((folder / name).exists() for folder in folders), name


@every_document
def test_named_code_exists(path: Path) -> None:
    if path.name == "extending.md":  # names classes of its own
        return
    for name in backticked(path):
        if "/" in name:  # a file
            continue
        for module in re.findall(r"\bheadstart\.[a-z_]+(?:\.\w+)*", name):
            if not module.endswith((".db", ".checkpoint", ".png")):
                assert pkgutil.resolve_name(module), module
        for word in re.findall(r"\b_?[a-z]{2,}_[a-z]{2}\w*|\b[A-Z][a-z]+[A-Z]\w+", name):
            assert word in words_of_the_code(), word


@cache
def words_of_the_code() -> set[str]:
    """All words in the source of package, tests and benchmarks."""
    files = [file for top in ("src", "tests", "benchmarks") for file in (ROOT / top).rglob("*.py")]
    return {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("path", sorted((ROOT / "docs/reference").glob("*.md")), ids=lambda path: path.name)
def test_the_reference_names_existing_objects(path: Path) -> None:
    for name in re.findall(r"^::: ([\w.]+)", path.read_text(encoding="utf-8"), re.M):
        assert pkgutil.resolve_name(name), name
