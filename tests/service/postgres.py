"""A PostgreSQL cluster that is made for a test run and thrown away."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.service.running import free_port


def programs() -> Path | None:
    """The newest PostgreSQL that Debian has installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def why_not() -> str | None:
    """Why there can be no cluster here; None if there can."""
    if programs() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    return None if find_spec("psycopg") else "psycopg is not installed"


class Cluster:
    """A cluster in a folder of its own. It does not run as root, which PostgreSQL refuses."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headstart-pg-"))
        self.port = free_port()
        self._numbers = itertools.count()
        self._user = None
        if os.geteuid() == 0:
            names = {each.pw_name for each in pwd.getpwall()}
            self._user = "postgres" if "postgres" in names else "nobody"
            shutil.chown(self.folder, self._user)

    def __enter__(self) -> Cluster:
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "test", "-A", "trust", "-N")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=50"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop", check=False)

    def database(self) -> str:
        """The URL of a new database."""
        name = f"store{next(self._numbers)}"
        for _ in range(50):
            done = self._run(
                "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "test", name, check=False
            )
            if done == 0:
                break
            time.sleep(0.1)
        return f"postgresql://test@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        place = programs()
        assert place is not None
        done = subprocess.run(
            [str(place / program), *arguments],
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=check,
            timeout=60,
        )
        return done.returncode
