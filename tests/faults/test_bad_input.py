"""Bad input of every sort: a clear error that names the offending thing, and nothing is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headstart import Headstart, HeadstartError, Table
from tests.faults.bad_commands import FILES as COMMAND_FILES
from tests.faults.bad_commands import command_cases
from tests.faults.bad_python import python_cases
from tests.faults.bad_tables import FILES, frame_cases
from tests.test_cli import run


def made_up_table() -> Table:
    """Return 40 rows × 16 features of ratings, with a metadata column of every type."""
    random = np.random.default_rng(0)
    row, feature = np.nonzero(random.random((40, 16)) < 0.6)
    stars = np.clip(np.round(3 + random.normal(size=(40, 16))), 1, 5)[row, feature]
    names = [f"f{j}" for j in range(16)]
    metadata = pa.table(
        {
            "feature": names,
            "year": list(range(2000, 2016)),
            "genre": ["comedy", "drama"] * 8,
            "tags": [["a", "b"], ["a"]] * 8,
            "released": pa.array(range(16), pa.date32()),
            "title": [f"the title of {name}" for name in names],
            "vector": [[j / 3, 0.5] for j in range(16)],
        }
    )
    observations = {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature], "value": stars}
    return Table.read(pa.table(observations), metadata=metadata, kinds="rating:1:5")


@pytest.fixture(scope="session")
def model() -> Headstart:
    return Headstart(adapter="bayes", quiet=True).fit(made_up_table())


def content(model: Headstart) -> tuple[Any, ...]:
    """Return everything that a refused call could have changed."""
    prediction = model.predict()
    shots = [model.feature(name).shots for name in model.features]
    return model.features, list(model.rows), shots, prediction.mean.tobytes(), prediction.std.tobytes()


@pytest.fixture(scope="session")
def before(model: Headstart) -> tuple[Any, ...]:
    return content(model)


@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(call, message, id=what) for what, call, message in python_cases()]
)
def test_python_calls(
    model: Headstart, before: tuple[Any, ...], call: Callable[[Headstart], Any], message: str
) -> None:
    with pytest.raises(HeadstartError) as refused:
        call(model)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert content(model) == before


@pytest.mark.parametrize(
    ("frame", "arguments", "message"), [pytest.param(*rest, id=what) for what, *rest in frame_cases()]
)
def test_frames(frame: Callable[[], Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadstartError) as refused:
        Table.read(frame(), **arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "written", "arguments", "message"),
    [pytest.param(*case, id=f"{number}-{case[0]}") for number, case in enumerate(FILES)],
)
def test_files(tmp_path: Path, name: str, written: bytes, arguments: dict[str, Any], message: str) -> None:
    path = tmp_path / name
    path.write_bytes(written)
    with pytest.raises(HeadstartError) as refused:
        Table.read(path, **arguments)
    assert message in str(refused.value)
    assert str(path) in str(refused.value) or "row 'a'" in message  # the cell is named
    assert path.read_bytes() == written


UNREADABLE = ("is empty", "cannot be read", "is not a readable", "has an unsupported")


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        pytest.param(name, written, message, id=f"{number}-{name}")
        for number, (name, written, _, message) in enumerate(FILES)
        if message.startswith(UNREADABLE)
    ],
)
def test_metadata_files(tmp_path: Path, name: str, written: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(written)
    with pytest.raises(HeadstartError) as refused:
        Table.read(pa.table({"row": ["a"], "feature": ["x"], "value": [1]}), metadata=path)
    assert f"{path} {message}" in str(refused.value)


def test_places_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("row,x\na,1\n")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "memory.csv").symlink_to("/proc/self/mem")  # exists and cannot be read, for root as well
    places = {
        tmp_path / "rating.csv": "there is no file {}; did you mean 'ratings.csv'?",
        tmp_path / "nowhere" / "a.csv": "there is no file {}",
        tmp_path / "folder.csv": "{} is a folder",
        tmp_path / "loop.csv": "'{}' cannot be read: Too many levels of symbolic links",
        tmp_path / "ratings.csv" / "a.csv": "'{}' cannot be read: Not a directory",
        tmp_path / "memory.csv": "{} cannot be read: Input/output error",
        tmp_path / ("n" * 300 + ".csv"): "'{}' cannot be read: File name too long",
        tmp_path / "a\0b.csv": "cannot be read: embedded null byte",
    }
    for path, message in places.items():
        for arguments in (
            {"observations": path},
            {"observations": tmp_path / "ratings.csv", "metadata": path},
        ):
            with pytest.raises(HeadstartError) as refused:
                Table.read(**arguments)
            assert message.format(path) in str(refused.value)


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may read everything: the system call is made to refuse."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("a.csv", "a.csv.gz"):
        (tmp_path / name).write_bytes(b"row,x\na,1\n")
        with monkeypatch.context() as patched:
            patched.setattr("gzip.open" if name.endswith("gz") else "builtins.open", refuse)
            with pytest.raises(HeadstartError, match=rf"{name} cannot be read: Permission denied"):
                Table.read(tmp_path / name)


# --- the command line ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def folder(model: Headstart, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a saved model and all the files that the commands are given."""
    path = tmp_path_factory.mktemp("commands")
    model.save(path / "m")
    for name, written in COMMAND_FILES.items():
        (path / name).write_bytes(written)
    return path


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="session")
def files_before(folder: Path) -> dict[str, str]:
    return digests(folder)


SPOKEN_PYTHON = ("()", "pass ", "kinds=", "kind=", "metadata_types=", "duplicates=", "form=", "Headstart.")


@pytest.mark.parametrize(
    ("arguments", "code", "message"), [pytest.param(*rest, id=what) for what, *rest in command_cases()]
)
def test_commands(
    folder: Path, files_before: dict[str, str], arguments: list[str], code: int, message: str
) -> None:
    done = run(*arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    if code == 1:
        assert message in done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert not [words for words in SPOKEN_PYTHON if words in done.stderr]
    else:
        assert message in " ".join(done.stderr.replace("│", "").split())
    assert digests(folder) == files_before
