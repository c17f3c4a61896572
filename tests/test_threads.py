"""How threads wait: asleep, unless the user has said something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

NAMES = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")


def settings_after(program: str, **given: str) -> dict[str, str]:
    """What a process has set after a program, from the settings given."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    report = f"; import json, os; print(json.dumps({{n: os.environ[n] for n in {NAMES} if n in os.environ}}))"
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        capture_output=True, text=True, check=True, env=environment | given,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


SET = "from headstart.parallel import set_openmp_wait_policy; set_openmp_wait_policy()"
COMMAND = (
    "import contextlib, io, sys; sys.argv = ['headstart', '--version']; from headstart.cli import main\n"
    "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n0"
)
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def test_importing_changes_no_environment_variable() -> None:
    assert settings_after("import headstart; headstart.Headstart") == {}


@pytest.mark.parametrize("program", [SET, COMMAND], ids=["function", "command line"])
def test_threads_sleep_while_they_wait(program: str) -> None:
    assert settings_after(program) == PASSIVE


@pytest.mark.parametrize("name", NAMES)
def test_what_the_user_set_stays(name: str) -> None:
    assert settings_after(SET, **{name: "7"}) == {name: "7"}


def test_nothing_is_set_when_it_is_too_late() -> None:
    program = f"import sys, types; sys.modules['torch'] = types.ModuleType('torch'); {SET}"
    assert settings_after(program) == {}
