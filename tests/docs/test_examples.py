"""What the documents say is true: examples run, commands and links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from headstart.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [
    "README.md",
    "docs/guide.md",
    *(f"docs/tutorials/{name}.md" for name in ("films", "question_bank", "survey", "catalogue_week")),
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_examples_run_and_print_what_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples of a document are one script; a block of text after one is what it prints."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    every = blocks(ROOT / name)
    for (language, code, line), following in zip(every, [*every[1:], ("", "", 0)], strict=True):
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
