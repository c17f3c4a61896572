"""An adapter of another package, as docs/extending.md shows it, works everywhere."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv
from tests.docs.test_examples import ROOT, blocks

from headstart import Headstart
from headstart.datasets import synthetic_ratings
from headstart.errors import ModelFileError

PAGE = blocks(ROOT / "docs/extending.md")
MODULE, *STEPS = [code for language, code, _ in PAGE if language == "python"]
PROJECT = tomllib.loads(next(code for language, code, _ in PAGE if language == "toml"))["project"]
SAID = [code for language, code, _ in PAGE if language == "text"]
COMMAND = next(code for language, code, _ in PAGE if language == "bash")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like site-packages with the page's package installed in it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "headstart_shrunk.py").write_text(MODULE)
    info = folder / f"headstart_shrunk-{PROJECT['version']}.dist-info"
    info.mkdir()
    facts = {"Metadata-Version": "2.1", "Name": PROJECT["name"], "Version": PROJECT["version"]}
    (info / "METADATA").write_text("".join(f"{key}: {value}\n" for key, value in facts.items()))
    (info / "top_level.txt").write_text("headstart_shrunk\n")
    lines = []
    for group, points in PROJECT["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def run(outside: Path, cwd: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(outside), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SERVED = """
from pathlib import Path
from starlette.testclient import TestClient
from headstart import Headstart
from headstart.datasets import synthetic_ratings
from headstart.service.app import create_app

table = synthetic_ratings(rows=40, features=20, density=0.5)
Headstart(adapter="shrunk-mean", quiet=True).fit(table).save("served.headstart")
app = create_app(Path("served.headstart"), "sqlite:///store.db")
with TestClient(app, base_url="http://127.0.0.1") as client:
    app.service.wait()
    row, other = table.rows[0], table.rows[1]
    added = client.post("/v1/features", json={"name": "new", "observations": {row: 5}})
    assert added.status_code == 201, added.text
    cell = {"rows": [other], "features": ["new"]}
    before = client.post("/v1/predict", json=cell).json()
    observed = [{"row": other, "feature": "new", "value": 5}]
    assert client.post("/v1/observations", json={"observations": observed}).status_code < 300
    after = client.post("/v1/predict", json=cell).json()
    print(before != after)
    explained = client.post("/v1/explain", json={"row": other, "feature": "new"})
    print(explained.status_code, "new: 2 observations" in explained.text)
"""


COMPARED = """
import sys
from headstart.cli import main
sys.argv = {words!r}
main()
"""


@pytest.fixture(scope="module")
def used(outside: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder and the output of each program of a process that has the package installed."""
    folder = tmp_path_factory.mktemp("used")
    table = synthetic_ratings(60, 30, 0.5)
    long = {
        "row": [table.rows[i] for i in table.row_index],
        "feature": [table.features[j] for j in table.feature_index],
        "value": table.values,
    }
    csv.write_csv(pa.table(long), folder / "ratings.csv")
    words = [*shlex.split(COMMAND), "--quiet"]
    assert words[0] == "headstart"
    steps = [step for step in STEPS if "register_adapter(" not in step]  # the entry point is enough
    programs = ["\n".join(steps), SERVED, COMPARED.format(words=words)]
    script = folder / "used.py"
    script.write_text("\nprint('--- next')\n".join(programs))
    said = run(outside, folder, sys.executable, "-W", "ignore", str(script))
    return folder, said.split("--- next\n")


def test_it_is_found_by_its_entry_point_checked_used_and_saved(used: tuple[Path, list[str]]) -> None:
    folder, said = used
    assert said[0] == "".join(SAID)
    # This process does not have the package.
    with pytest.raises(ModelFileError, match="install headstart-shrunk to load this model"):
        Headstart.load(folder / "ratings.headstart")


def test_it_is_served_observed_and_explained(used: tuple[Path, list[str]]) -> None:
    assert used[1][1] == "True\n200 True\n"


def test_it_can_be_registered_without_an_entry_point(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "headstart_shrunk.py").write_text(MODULE)
    register = next(step for step in STEPS if "register_adapter(" in step)
    name = "from headstart.adapters import adapter_names\nprint('shrunk-mean' in adapter_names())"
    assert run(tmp_path, tmp_path, sys.executable, "-c", f"{register}\n{name}") == "True\n"


def test_the_command_line_knows_it(used: tuple[Path, list[str]]) -> None:
    assert "shrunk-mean" in (used[0] / "compared/results.json").read_text()
