"""Every promise in ``docs/promises.md`` names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_promise_has_its_tests() -> None:
    text = (DOCS / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", text)
    assert len(named) > 25
    for test, file in named:
        assert f"def {test}(" in (DOCS / file).read_text(encoding="utf-8"), (test, file)


def test_every_fault_test_of_a_promise_is_linked() -> None:
    """Most fault tests show a promise; a file of them without one has been forgotten."""
    text = (DOCS / "promises.md").read_text(encoding="utf-8")
    for file in (DOCS.parent / "tests" / "faults").glob("test_*.py"):
        assert f"../tests/faults/{file.name}" in text, file.name
