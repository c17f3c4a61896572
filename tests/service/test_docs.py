"""The examples of ``docs/service.md`` are run against a service."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.service.running import Server

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def commands() -> list[str]:
    """The ``curl`` commands of the page, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("curl ")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_run(model_path: Path, url: str) -> None:
    found = commands()
    assert len(found) >= 15
    with Server(model_path, url) as server:
        for line in found:
            own = line.replace("http://localhost:8000", server.address)
            done = subprocess.run(
                [*shlex.split(own), "-w", "\n%{http_code}"],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
            content, _, status = done.stdout.rpartition("\n")
            assert status in ("200", "201"), (line, content)
            assert json.loads(content)["model"], line
