"""The built package: what is in it, and that it works in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without PYTHONPATH, which could name this checkout."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/headstart").rglob("*.py")}
    assert sources <= set(names)
    assert {"headstart/py.typed", *(f"headstart/table/word_pieces.{end}" for end in ("npz", "md"))} <= set(
        names
    )
    tops = {name.split("/")[0].partition("-")[0] for name in names}
    assert tops == {"headstart"}
    assert not [name for name in names if "test_" in name or "conftest" in name or "__pycache__" in name]


def test_the_metadata_says_what_the_package_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        facts = Parser().parsestr(archive.read(name).decode())
    import headstart

    assert facts["Version"] == headstart.__version__
    assert facts["Requires-Python"] == ">=3.11"
    assert {"demo", "dev", "docs"} <= set(facts.get_all("Provides-Extra"))
    assert facts.get_all("Project-URL")


@pytest.mark.package
@pytest.mark.timeout(1200)
def test_the_wheel_works_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """As a user has it: source and wheel built in isolation, installed without this checkout in sight."""
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    (built,), (source,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert any(name.endswith("src/headstart/py.typed") for name in archive.getnames())
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    binaries = tmp_path / "venv/bin"
    run(binaries / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", built)
    assert "headstart" in run(binaries / "headstart", "--help", cwd=tmp_path)
    script = (
        "import headstart; from headstart.datasets import synthetic_ratings\n"
        "model = headstart.Headstart(metatraining={'epochs': 1}, quiet=True)\n"
        "model.fit(synthetic_ratings(40, 20, 0.5))\n"
        "model.add_feature('new'); model.save('model'); headstart.Headstart.load('model')\n"
        "print(headstart.__file__)\n"
    )
    where = run(binaries / "python", "-c", script, cwd=tmp_path)
    assert str(tmp_path) in where
