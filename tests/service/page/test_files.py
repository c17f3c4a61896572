"""The files of the page, without a browser."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from headstart.service.app import PAGE
from headstart.service.auth import HEADERS

SCRIPTS = sorted(PAGE.rglob("*.js"))


def test_the_page_is_served_under_a_strict_policy(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert answer.headers["cache-control"] == "no-cache"
    for place in re.findall(r'(?:src|href)="([^"#]+)"', answer.text):
        assert client.get(f"/{place}").status_code == 200, place
    assert client.get("/main.js").headers["content-type"].startswith("text/javascript")


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", html)
    for path in [PAGE / "index.html", PAGE / "style.css", *SCRIPTS]:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import", text), path


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_short_and_write_only_text(path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 250
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    for place in re.findall(r'from "([^"]+)"', text):
        assert (path.parent / place).resolve().is_file(), place


def test_the_distribution_counts_every_row(client: TestClient) -> None:
    answer = client.get("/v1/features/f1/distribution")
    assert answer.status_code == 200
    shown = answer.json()
    names = client.get("/v1/rows?limit=1000").json()["rows"]
    body = {"rows": names, "features": ["f1"], "form": "arrays"}
    means = [line[0] for line in client.post("/v1/predict", json=body).json()["mean"]]
    assert shown["rows"] == sum(shown["counts"]) == len(names)
    assert shown["mean"] == pytest.approx(sum(means) / len(means), abs=1e-6)
    low, high = shown["edges"][3], shown["edges"][20]
    assert sum(shown["counts"][3:20]) == sum(low <= value < high for value in means)
    assert (shown["edges"][0], shown["edges"][-1]) == (1, 5)
    assert client.get("/v1/features/nothing/distribution").status_code == 404
