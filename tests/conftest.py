"""One thread a test process: two runners on two cores would else wait for each other's threads."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
import torch

from headstart.table.text_encoders import DEFAULT, PACKAGE
from tests.limits import Limits
from tests.limits import limits as limited
from tests.stand_ins import hide_modules

torch.set_num_threads(1)
os.environ["HEADSTART_CACHE"] = "off"  # tests neither read nor fill the user's cache
# A shell that starts the tests in the background lets them, and what they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Print no letter for tests that pass or are skipped: the summary has the skipped ones with reasons."""
    if report.skipped:
        return "skipped", "", "SKIPPED"
    return ("passed", "", "") if report.when == "call" and report.passed else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let pytest-xdist start its processes without a word."""
    distributed = session.config.pluginmanager.get_plugin("terminaldistreporter")
    if distributed is not None:
        distributed.ensure_show_status = lambda: None


@pytest.fixture(autouse=True)
def _measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the coverage of started processes only where nothing else shows it: that takes time."""
    if "distributed" not in request.path.parts:
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture(autouse=True)
def _word_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode texts by word pieces in all tests but those of the encoder, whether one is installed or not."""
    if "sentence_encoder" not in request.fixturenames:
        hide_modules(monkeypatch, "sentence_transformers")


@pytest.fixture
def limits() -> Iterator[Limits]:
    """Set limits of the package until the test ends: see ``tests.limits``."""
    with ExitStack() as values:
        yield lambda **named: values.enter_context(limited(**named))


@pytest.fixture
def sentence_encoder() -> str:
    """The default sentence encoder, if it is installed."""
    for module in ("sentence_transformers", PACKAGE):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; install the extra 'minilm' to test the sentence encoder")
    return DEFAULT
