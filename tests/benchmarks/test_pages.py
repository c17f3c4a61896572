"""The tables of the documentation are those of the shipped results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_tables_of_a_page_are_those_of_the_files(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert all(f"<!-- table: {table} -->" in text for table in pages.PAGES[name])
    assert pages.filled(text, pages.PAGES[name]) == text, "run: make tables"


def test_a_changed_number_is_found() -> None:
    text = (ROOT / "docs/living.md").read_text(encoding="utf-8")
    number = re.findall(r"\| 100 % \| (0\.\d{4})", text)[0]
    changed = text.replace(f"| {number} |", "| 0.8111 |")
    assert changed != text == pages.filled(changed, pages.PAGES["living.md"])
