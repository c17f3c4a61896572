"""A browser, a service for it, and pages that watch for errors and requests to other hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.running import Server

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = "axe-core@4.14.0"
Open = Callable[..., "sync_api.Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[sync_api.Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    with sync_api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One service for all tests of the page, each of which adds features or rows of its own."""
    store = tmp_path_factory.mktemp("page") / "store.db"
    with Server(model_path, f"sqlite:///{store}") as started:
        yield started


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as client:
        yield client


@pytest.fixture
def open_page(browser: sync_api.Browser, server: Server) -> Iterator[Open]:
    """Open a view; at the end there were no errors, and no requests to other hosts."""
    contexts: list[sync_api.BrowserContext] = []
    wrong: list[str] = []

    def opened(view: str = "", *, address: str = server.address, **given: object) -> sync_api.Page:
        context = browser.new_context(**given)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda shown: wrong.append(f"a dialog: {shown.message}"))
        page.on("request", lambda made: None if made.url.startswith(address) else wrong.append(made.url))
        page.goto(f"{address}/{view}")
        settle(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    # The browser itself writes a line for every status that is no success; the page shows those.
    assert [each for each in wrong if "Failed to load resource" not in each] == []


def settle(page: sync_api.Page) -> None:
    """Wait until everything is loaded."""
    page.locator("main:not([aria-busy]) h1, dialog h2").first.wait_for()
    if not page.locator("dialog").count():
        page.locator("[aria-busy]").first.wait_for(state="detached")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core: a file that ``HEADSTART_AXE`` names, or from the npm registry."""
    named = os.environ.get("HEADSTART_AXE")
    if named:
        return Path(named).read_text(encoding="utf-8")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core is not there: npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("axe-core is not there: the npm registry does not answer")
    if done.returncode:
        pytest.skip(f"axe-core is not there: {done.stderr.strip().splitlines()[-1:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
