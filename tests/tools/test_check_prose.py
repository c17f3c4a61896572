"""The check of docstrings, comments, messages and documentation."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "check_prose.py"
specification = importlib.util.spec_from_file_location("check_prose", SCRIPT)
assert specification is not None
assert specification.loader is not None
check_prose = importlib.util.module_from_spec(specification)
sys.modules["check_prose"] = check_prose  # its annotations are looked up there
specification.loader.exec_module(check_prose)


def words(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text)
    return [(finding.line, finding.words) for finding in check_prose.check_file(path)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('def f():\n    """Return so many rows."""\n', [(2, "so many")]),
        ("x = 1\n# These are the rows of\n# which there are few.\n", [(2, "of which")]),
        ('raise ValueError("what was given is wrong")\n', [(1, "what was")]),
        ('def f():\n    """The sum of the rows."""\n', [(2, "The")]),
        ('def f():\n    """Whether it is sorted."""\n', [(2, "Whether")]),
        ('"""Summary.\n\nThe rows, those that\nare kept.\n"""\n', [(3, "those that")]),
        (
            'def f():\n    """Predict.\n\n    ``kinds`` (n,) are those of rows.\n    """\n',
            [(4, "_ (n,) are those of")],
        ),
        ("# The number of numbers.\n", [(1, "number of numbers")]),
    ],
)
def test_habits_are_found_in_their_lines(tmp_path: Path, text: str, expected: list[tuple[int, str]]) -> None:
    assert words(tmp_path / "a.py", text) == expected


@pytest.mark.parametrize(
    "text",
    [
        'def f():\n    """Return ``so many`` rows."""\n',
        'def f():\n    """Return it.\n\n    >>> so many of which\n    """\n',
        "x = 1  # so many rows; prose: ok\n",
        'def f():\n    """Return so many rows."""  # prose: ok\n',
        '@property\ndef f():\n    """The number of rows."""\n',
        'x = "so many"\n',
        "# The message says what was wrong.\n",
        "# What is a row? It is a data point.\n",
        'def f():\n    """Predict.\n\n    The mean is that of ``kinds``.\n    """\n',
    ],
)
def test_code_allowed_uses_and_right_english_pass(tmp_path: Path, text: str) -> None:
    assert words(tmp_path / "a.py", text) == []


def test_markdown_is_checked_except_in_code(tmp_path: Path) -> None:
    text = "# Title\n\n```\nso many\n```\n\nWhoever reads `so many` rows.\n\nWhoever. <!-- prose: ok -->\n"
    assert words(tmp_path / "a.md", text) == [(7, "Whoever")]


def test_the_command_lists_findings_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("# whoever\n")
    assert check_prose.main([str(tmp_path)]) == 1
    assert "a.py:1: 'whoever'" in capsys.readouterr().out
    (tmp_path / "a.py").write_text("# the writer\n")
    assert check_prose.main([str(tmp_path)]) == 0
