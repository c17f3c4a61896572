"""The commands of the service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from starlette.testclient import TestClient

from headstart.cli.serve import default_store, is_loopback
from headstart.service.store import Store
from tests.limits import Limits
from tests.test_cli import run as command


def run(*arguments: object, fails: bool = False) -> str:
    """Run a command, which must fail or not, and return all that it says."""
    done = command(*arguments)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def served(limits: Limits) -> list[tuple]:
    calls: list[tuple] = []
    limits(start_server=lambda *given: calls.append(given))
    return calls


def test_serve_says_what_it_does(model_path: Path, url: str, served: list[tuple]) -> None:
    said = run("serve", model_path, "--store", url, "--port", 8765, "--workers", 2)
    assert "http://127.0.0.1:8765" in said
    assert "there are no tokens" in said
    ((model, store, settings, host, port, workers),) = served
    assert (model, store, host, port, workers) == (model_path, url, "127.0.0.1", 8765, 2)
    assert settings.loopback


def test_other_addresses_need_a_token(model_path: Path, url: str, served: list[tuple]) -> None:
    refused = run("serve", model_path, "--store", url, "--host", "0.0.0.0", fails=True)
    assert "there are no tokens" in refused
    assert not served
    token = run("token", "create", "me", "--scope", "admin", "--store", url)
    assert token.startswith("hs_")
    run("serve", model_path, "--store", url, "--host", "0.0.0.0")
    assert not served[0][2].loopback


def test_serve_says_what_is_open(model_path: Path, url: str, served: list[tuple]) -> None:
    assert "everyone on it may change everything" in run("serve", model_path, "--store", url)
    token = run("token", "create", "me", "--store", url)
    said = run("serve", model_path, "--store", url)
    assert "open without a token: the page, /docs, /openapi.json, /health, /ready" in said
    assert "revoked" not in said
    run("token", "revoke", token.split("_")[1], "--store", url)
    said = run("serve", model_path, "--store", url)
    assert "all tokens are revoked" in said
    assert "headstart token create" in said
    assert "everyone" not in said
    assert len(served) == 3


def test_tokens_are_created_listed_and_revoked(url: str) -> None:
    token = run("token", "create", "shop [red]", "--scope", "write", "--store", url)
    identity = token.split("_")[1]
    listed = run("token", "list", "--store", url)
    assert identity in listed
    assert "shop [red]" in listed
    assert token not in listed
    assert "revoked" in run("token", "revoke", identity, "--store", url)
    assert "no token" in run("token", "revoke", identity, "--store", url, fails=True)
    assert "not a scope" in run("token", "create", "x", "--scope", "rite", "--store", url, fails=True)


def test_bad_models_and_stores_are_refused(model_path: Path, tmp_path: Path, served: list[tuple]) -> None:
    assert "not a saved model" in run("serve", tmp_path, fails=True)
    assert "in memory" in run("serve", model_path, "--store", "sqlite://", fails=True)
    assert not served


def test_export_writes_what_arrived(client: TestClient, model_path: Path, url: str, tmp_path: Path) -> None:
    given = {"name": "new", "metadata": {"year": 2001}, "observations": {"u1": 5}}
    client.post("/v1/features", json=given)
    out, described = tmp_path / "out.parquet", tmp_path / "films.parquet"
    run("export", "--store", url, "--out", out, "--metadata-out", described)
    assert pyarrow.parquet.read_table(out).to_pylist() == [{"row": "u1", "feature": "new", "value": 5.0}]
    assert pyarrow.parquet.read_table(described).to_pylist() == [{"feature": "new", "year": 2001}]
    run("export", model_path, "--store", url, "--out", out, "--metadata-out", described)
    lines = pyarrow.parquet.read_table(out).to_pylist()
    assert {"row": "u1", "feature": "new", "value": 5.0} in lines
    assert len(lines) > 300
    assert "name a model" in run("export", "--out", out, fails=True)


def test_the_store_lies_beside_the_model(tmp_path: Path) -> None:
    assert default_store(tmp_path / "films.headstart") == f"sqlite:///{tmp_path}/films.headstart.db"
    with Store(default_store(tmp_path / "films.headstart")):
        assert (tmp_path / "films.headstart.db").exists()


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.0.0.5", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.168.1.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_which_addresses_are_this_machines_own(host: str, own: bool) -> None:
    assert is_loopback(host) == own


def test_the_parent_of_several_workers_does_not_import_torch() -> None:
    code = "import sys, headstart.service.supervisor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
