"""The notebooks are those of the tutorials, and valid."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "make_notebooks.py"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_notebook_is_that_of_the_tutorial(path: Path) -> None:
    stored = (ROOT / "notebooks" / f"{path.stem}.ipynb").read_text(encoding="utf-8")
    assert stored == TOOL["make_notebook"](path.read_text(encoding="utf-8")), "run make notebooks"
    notebook = json.loads(stored)
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (
        4,
        len(notebook["cells"]),
    )
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        compile(cell, path.name, "exec")
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert "```python" not in text


def test_every_notebook_has_a_tutorial() -> None:
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == {path.stem for path in TUTORIALS}


def test_links_lead_to_documents() -> None:
    cells = json.loads(
        TOOL["make_notebook"]("See [methods](../methods.md), [x](https://x.org) and [here](#a).")
    )
    assert cells["cells"][0]["source"] == [
        "See [methods](../docs/methods.md), [x](https://x.org) and [here](#a)."
    ]
