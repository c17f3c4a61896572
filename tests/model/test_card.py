"""The card of a model says what its info, calibration, staleness and files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.test_cli import run

from headstart import Headstart
from headstart.datasets import synthetic_ratings


@pytest.fixture(scope="module")
def model() -> Headstart:
    fitted = Headstart(quiet=True).fit(synthetic_ratings(rows=80, features=30, density=0.5))
    fitted.add_feature("new", {"year": 2026})
    fitted.observe([("row 0", "new", 5)])
    return fitted


def test_the_sections(model: Headstart) -> None:
    card, info = model.card(), model.info
    assert card.sections["Data"]["features"] == "31, 1 of them added after fit"
    assert card.sections["Data"]["kinds"] == "31 rating:1:5"
    errors = card.sections["Expected error of a new feature"]
    assert [f"{item.shots} observation{'s' * (item.shots != 1)}" for item in info.errors] == list(errors)[1:]
    assert errors["0 observations"].startswith(f"{info.errors[0].error:.3g}")
    assert set(info.metadata) < set(card.sections["Metadata"])
    assert card.sections["Since the fit"]["staleness"] == str(model.staleness())
    assert "Files" not in card.sections  # it is not saved


def test_markdown_and_html(model: Headstart) -> None:
    card = model.card()
    text = card.to_markdown("Card of a|b")
    assert text.startswith("# Card of a\\|b\n")
    assert "| rows | 80, 0 of them added after fit |" in text
    assert "<h2>Calibration</h2>" in card.to_html()
    assert "Data\n  rows: 80" in str(card)


def test_the_command(model: Headstart, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    with Headstart.updating(tmp_path / "m") as loaded:
        loaded.observe([("row 1", "new", 3)])
    checksum = json.loads((tmp_path / "m" / "model.json").read_text())["checksum"]
    shown = run("card", tmp_path / "m")
    assert shown.returncode == 0, shown.stderr
    assert f"checksum of the saved model: {checksum}" in shown.stdout
    assert "changes in the journal: 1" in shown.stdout
    done = run("card", tmp_path / "m", "--out", tmp_path / "card.html")
    assert done.returncode == 0, done.stderr
    assert "<title>Model card of m</title>" in (tmp_path / "card.html").read_text()
    assert "must end in .md or .html" in run("card", tmp_path / "m", "--out", tmp_path / "card.pdf").stderr
