"""Make notebooks from the tutorials: ``python tools/make_notebooks.py`` writes ``notebooks/*.ipynb``.

The text is kept once, in ``docs/tutorials``. A block of Python becomes a cell of code, the block of text
below it the output of the cell, and the rest cells of text. A test compares the notebooks with the tutorials,
whose examples are run as tests.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUTORIALS, NOTEBOOKS = ROOT / "docs" / "tutorials", ROOT / "notebooks"

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.S | re.M)


def make_notebook(text: str) -> str:
    """Return the notebook of a tutorial in Markdown, as JSON.

    >>> text = "# Sums\\n\\n```python\\nprint(1 + 1)\\n```\\n\\n```text\\n2\\n```\\n"
    >>> [cell["cell_type"] for cell in json.loads(make_notebook(text))["cells"]]
    ['markdown', 'code']
    """
    cells: list[dict[str, Any]] = []
    end = 0
    for block in _BLOCK.finditer(text):
        cells += _text_cell(text[end : block.start()], len(cells))
        cells.append(_code_cell(block["code"], block["output"], len(cells)))
        end = block.end()
    cells += _text_cell(text[end:], len(cells))
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _text_cell(text: str, number: int) -> list[dict[str, Any]]:
    def link(target: re.Match[str]) -> str:
        return f"]({posixpath.normpath(f'../docs/tutorials/{target[1]}')})"

    text = re.sub(r"\]\((?!https?:|#)([^)]+)\)", link, text.strip())
    if not text:
        return []
    return [{"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": _lines(text)}]


def _code_cell(code: str, output: str | None, number: int) -> dict[str, Any]:
    outputs = [] if output is None else [{"name": "stdout", "output_type": "stream", "text": _lines(output)}]
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": {},
        "outputs": outputs,
        "source": _lines(code.rstrip("\n")),
    }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Write one notebook for each tutorial."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for tutorial in sorted(TUTORIALS.glob("*.md")):
        notebook = make_notebook(tutorial.read_text(encoding="utf-8"))
        (NOTEBOOKS / f"{tutorial.stem}.ipynb").write_text(notebook, encoding="utf-8")


if __name__ == "__main__":
    main()
