"""Imports cost only what is used: measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.cli.main import app

CHILD_CPU = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
assert done.returncode == 0, done.stderr
print(used.ru_utime + used.ru_stime)
"""
HEADSTART = "from headstart.cli import main; main()"
COMMANDS = [command.name for command in app.registered_commands]


def modules_after(program: str) -> set[str]:
    """The top-level modules that are loaded after a program."""
    report = "; import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", program + report], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def cpu_seconds(*command: str) -> float:
    """The CPU time of a command."""
    return float(subprocess.check_output([sys.executable, "-c", CHILD_CPU, *command], text=True))


def test_the_package_alone_is_light() -> None:
    assert not modules_after("import headstart") & {"torch", "numpy", "pyarrow", "pydantic", "httpx", "rich"}


def test_no_part_of_the_package_loads_a_library_that_only_some_uses_need() -> None:
    """All parts in one process, which loads torch: none of the libraries is there at the end."""
    program = "import os; before = dict(os.environ); from headstart import *; "
    program += "import headstart.scoring, headstart.evaluate, headstart.model, headstart.table; "
    program += "assert dict(os.environ) == before"
    plots_and_tables = {"matplotlib", "sklearn", "scipy", "pandas"}
    encoders = {"sentence_transformers", "transformers", "huggingface_hub"}
    assert not modules_after(program) & (plots_and_tables | encoders | {"ray"})


def test_help_loads_neither_torch_nor_a_data_library() -> None:
    """Help of every command, in one process: whatever one of them loads is found at the end."""
    calls = [["headstart", *command, "--help"] for command in [[], *([name] for name in COMMANDS)]]
    program = f"""
import contextlib, sys
for sys.argv in {calls!r}:
    with contextlib.suppress(SystemExit):
        {HEADSTART}
0"""
    assert not modules_after(program) & {"torch", "numpy", "pyarrow", "matplotlib", "sklearn"}


def test_asking_a_saved_model_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """Answers of commands in one process; pandas above all, which pyarrow imports where it is installed."""
    saved = tmp_path / "model"
    fitted = (
        "from headstart import Headstart; from headstart.datasets import synthetic_ratings; "
        f"Headstart(adapter='bayes', quiet=True).fit(synthetic_ratings(30, 10, 0.5)).save({str(saved)!r})"
    )
    subprocess.run([sys.executable, "-c", fitted], check=True)
    asked = [["info"], ["features"], ["rows"], ["card"], ["audience", "film 1"], ["similar", "film 1"],
             ["predict", "--rows", "row 1", "--features", "film 1"]]  # fmt: skip
    needless = {"narwhals", "pandas", "matplotlib", "sklearn"}
    assert not modules_after(answers(saved, asked)) & {*needless, "scipy"}
    assert not modules_after(answers(saved, [["recommend", "row 1"]])) & needless  # it needs SciPy


def answers(saved: Path, asked: list[list[str]]) -> str:
    """A program that runs commands on a saved model, one after the other."""
    calls = [["headstart", command, str(saved), *words] for command, *words in asked]
    return f"""
import sys
for sys.argv in {calls!r}:
    try:
        {HEADSTART}
    except SystemExit as end:
        assert not end.code, sys.argv
0"""


def test_a_named_command_knows_its_neighbours() -> None:
    """Only the named command is built; a misspelled name still gets a suggestion among all."""
    program = "import sys; sys.argv = ['headstart', 'predickt']; " + HEADSTART
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "predict" in done.stderr.replace("predickt", "")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["fit", "--help"]], ids=" ".join)
def test_help_takes_little_time(arguments: list[str]) -> None:
    """In the best of three runs; the others are left out once one is quick enough."""
    runs = (cpu_seconds(sys.executable, "-c", HEADSTART, *arguments) for _ in range(3))
    assert any(seconds < 1.0 for seconds in runs)


def test_the_version_is_the_one_of_the_installed_package() -> None:
    from importlib.metadata import version

    import headstart

    assert headstart.__version__ == version("headstart")


def test_every_public_name_is_there_and_no_other() -> None:
    import headstart

    for name in headstart.__all__:
        assert name in dir(headstart)
        assert getattr(headstart, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'headstart' has no attribute 'Tabel'"):
        headstart.Tabel  # noqa: B018
