"""Fetching data sets from their official addresses: resumable, checked, and only under their terms."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath

from pydantic import Field

from headstart.config import Config
from headstart.errors import HeadstartError, InputError, UnknownNameError, did_you_mean
from headstart.progress import Reporter

_BLOCK = 1 << 18
_PATIENCE = 60.0  # seconds without a byte


class Download(Config):
    """Where a data set officially is, how to know it is whole, and on what terms it is given."""

    name: str
    address: str
    md5: str = Field(pattern="^[0-9a-f]{32}$")  # as published beside the file
    folder: str  # what unpacking makes
    terms: str


DOWNLOADS = {
    "movielens-1m": Download(
        name="movielens-1m",
        address="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        md5="c4d9eecfca2ab87c1945afe126590906",
        folder="ml-1m",
        terms="MovieLens-1M by GroupLens Research, University of Minnesota: for research only, not for "
        "commercial or revenue-bearing purposes, and not to be redistributed, without their permission. "
        "State or imply no endorsement by them; acknowledge the data set in publications and send them a "
        "copy. The README that comes with it holds the full terms.",
    ),
}


def download(name: str) -> Download:
    """Look up what can be fetched.

    >>> download("movielens-1").folder
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: nothing called 'movielens-1' can be fetched; did ...
    """
    if name not in DOWNLOADS:
        raise UnknownNameError(f"nothing called {name!r} can be fetched{did_you_mean(name, DOWNLOADS)}")
    return DOWNLOADS[name]


def fetch(source: Download, to: str | Path, *, agree: bool, reporter: Reporter | None = None) -> Path:
    """Download and unpack a data set into ``to``, and return its folder there.

    Nothing is sent before the terms are agreed to. An interrupted transfer goes on where it stopped; a
    file whose checksum is wrong is deleted, and nothing of it is unpacked.
    """
    reporter = reporter or Reporter(quiet=True)
    folder = Path(to) / source.folder
    if folder.exists():
        raise InputError(f"{str(folder)!r} is there already; delete it to fetch {source.name} again")
    if not agree:
        raise InputError(
            f"{source.name} is given on these terms: {source.terms} To agree to them, add --agree"
        )
    reporter.say(f"Terms: {source.terms}")
    Path(to).mkdir(parents=True, exist_ok=True)
    archive = Path(to) / (PurePosixPath(source.address).name + ".partial")
    _transfer(source, archive, reporter)
    found = _md5(archive)
    if found != source.md5:
        archive.unlink()
        raise HeadstartError(
            f"{source.address} came with checksum {found} instead of {source.md5}; what came was deleted: "
            "try again, and do not use the file if that happens twice"
        )
    _unpack(archive, folder)
    archive.unlink()
    return folder


def _transfer(source: Download, archive: Path, reporter: Reporter) -> None:
    """Append to ``archive`` what it lacks."""
    have = archive.stat().st_size if archive.exists() else 0
    request = urllib.request.Request(source.address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            resumed = answer.status == 206
            if have and not resumed:
                have = 0  # the server sends the whole again
            total = have + int(answer.headers.get("Content-Length") or 0)
            with (
                archive.open("ab" if resumed else "wb") as file,
                reporter.bar(f"Fetching {source.name}", total, have) as bar,
            ):
                while block := answer.read(_BLOCK):
                    file.write(block)
                    bar.step(advance=len(block))
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            return  # nothing is lacking: the checksum decides
        raise HeadstartError(f"{source.address} cannot be fetched: {error}") from None
    except (
        OSError,
        ValueError,
        http.client.HTTPException,
    ) as error:  # no network, a broken connection, a bad answer
        raise HeadstartError(
            f"{source.address} cannot be fetched: {error}; run the same again to go on where it stopped"
        ) from None
    if total and archive.stat().st_size < total:
        raise HeadstartError(
            f"{source.address} broke off after {archive.stat().st_size} of {total} bytes; run the same again "
            "to go on where it stopped"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the one folder the archive must hold, so that it is whole or not there."""
    beside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                inside = PurePosixPath(entry.filename)
                if inside.is_absolute() or ".." in inside.parts or inside.parts[:1] != (folder.name,):
                    raise HeadstartError(
                        f"{archive.name} holds {entry.filename!r}, which is not in {folder.name}/; "
                        "nothing was unpacked"
                    )
            packed.extractall(beside)
    except zipfile.BadZipFile:
        raise HeadstartError(f"{archive.name} is no zip file; nothing was unpacked") from None
    os.replace(beside / folder.name, folder)
    beside.rmdir()
