"""The site: every public thing is in the reference, and it builds without a warning."""

from __future__ import annotations

import re
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


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs what the site needs")
    pytest.importorskip("mkdocstrings_handlers.python")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/reference/model.html").exists()
