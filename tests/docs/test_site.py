"""The site: every public thing is in the reference, and it builds without a warning."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import headstart
import headstart.adapters
import headstart.backbones
import headstart.core
import headstart.evaluate
import headstart.scoring
import headstart.testing

ROOT = Path(__file__).parents[2]
SITE = runpy.run_path(str(ROOT / "tools/build_site.py"))
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
# Tables of parts, not things that are called.
OBJECTS = {"ADAPTERS", "BACKBONES", "METRICS"}


@pytest.mark.parametrize(
    "package",
    [
        headstart,
        headstart.adapters,
        headstart.backbones,
        headstart.core,
        headstart.evaluate,
        headstart.scoring,
        headstart.testing,
    ],
    ids=lambda package: package.__name__,
)
def test_every_public_name_is_in_the_reference(package: object) -> None:
    words = set(re.findall(r"\w+", REFERENCE))
    assert set(package.__all__) - OBJECTS <= words  # type: ignore[attr-defined]


def test_every_setting_of_a_part_is_in_the_reference() -> None:
    for registry in (headstart.adapters.ADAPTERS, headstart.backbones.BACKBONES):
        for name, part in registry.parts().items():
            assert part.config_type.__name__ in REFERENCE, name


def test_the_site_builds_without_a_warning() -> None:
    pytest.importorskip("zensical", reason="make docs installs what the site needs")
    pytest.importorskip("mkdocstrings_handlers.python")
    done = subprocess.run(
        [sys.executable, "tools/build_site.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    settings = (ROOT / "site/reference/adapters.html").read_text(encoding="utf-8")
    assert "Whether to blend heads with those of the closed form." in settings  # the comment of a field


def test_pages_link_to_pages_and_not_to_source_files() -> None:
    text = "[guide](docs/guide.md#a) [code](src/x.py) ![](docs/images/p.svg) [web](https://x.org) [here](#b)"
    assert SITE["rewrite_links"](text, "index.md", "README.md") == (
        "[guide](guide.md#a) code ![](images/p.svg) [web](https://x.org) [here](#b)"
    )
    assert SITE["rewrite_links"]("[home](../../README.md)", "tutorials/a.md", "docs/tutorials/a.md") == (
        "[home](../index.md)"
    )


def test_every_page_is_in_the_navigation_and_links_to_files_that_exist(tmp_path: Path) -> None:
    assert SITE["collect_pages"](ROOT, tmp_path / "pages") == []


def test_a_page_missing_in_the_navigation_and_a_missing_image_are_reported(tmp_path: Path) -> None:
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/peers/README.md", "docs/new.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("![](images/lost.png)\n" if name == "docs/new.md" else "# Page\n")
    nav = "nav = [{ Home = 'index.md' }, { Use = [{ Old = 'old.md' }] }]"
    (tmp_path / "zensical.toml").write_text(f"[project]\n{nav}\n")
    report = "\n".join(SITE["collect_pages"](tmp_path, tmp_path / "pages"))
    assert "new.md is not in the navigation" in report
    assert "lists old.md, which does not exist" in report
    assert "new.md links to images/lost.png" in report
