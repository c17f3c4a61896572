"""Download data sets from their official addresses: resumable, verified, under their terms of use."""

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

_TIMEOUT = 60.0  # seconds without data


class Download(Config):
    """The official address of a data set, its checksum and its terms of use."""

    name: str
    address: str
    md5: str = Field(pattern="^[0-9a-f]{32}$")  # published with the file
    folder: str  # the folder in the archive
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
        "copy. The README that comes with it contains the full terms.",
    ),
}


def download(name: str) -> Download:
    """Return the download with this name.

    >>> download("movielens-1").folder
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown download 'movielens-1'; did you mean 'movielens-1m'?
    """
    if name not in DOWNLOADS:
        raise UnknownNameError(f"unknown download {name!r}{did_you_mean(name, DOWNLOADS)}")
    return DOWNLOADS[name]


def fetch(source: Download, to: str | Path, *, agree: bool, reporter: Reporter | None = None) -> Path:
    """Download a data set, unpack it into the folder ``to``, and return the new folder.

    Nothing is requested unless ``agree`` is true. An interrupted download continues where it stopped. A
    file with a wrong checksum is deleted and not unpacked.
    """
    reporter = reporter or Reporter(quiet=True)
    folder = Path(to) / source.folder
    if folder.exists():
        raise InputError(f"{str(folder)!r} already exists; delete it to fetch {source.name} again")
    if not agree:
        raise InputError(
            f"{source.name} has these terms of use: {source.terms} To agree to them, add --agree"
        )
    reporter.say(f"Terms: {source.terms}")
    Path(to).mkdir(parents=True, exist_ok=True)
    archive = Path(to) / (PurePosixPath(source.address).name + ".partial")
    _download(source, archive, reporter)
    checksum = _md5(archive)
    if checksum != source.md5:
        archive.unlink()
        raise HeadstartError(
            f"the file from {source.address} has checksum {checksum} instead of {source.md5} and was deleted;"
            " try again, and do not use the file if this happens twice"
        )
    _unpack(archive, folder)
    archive.unlink()
    return folder


def _download(source: Download, archive: Path, reporter: Reporter) -> None:
    """Append the missing bytes to ``archive``."""
    size = archive.stat().st_size if archive.exists() else 0
    request = urllib.request.Request(source.address, headers={"Range": f"bytes={size}-"} if size else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            resumed = response.status == 206
            if size and not resumed:
                size = 0  # the server sends the whole file again
            total = size + int(response.headers.get("Content-Length") or 0)
            with (
                archive.open("ab" if resumed else "wb") as file,
                reporter.bar(f"Fetching {source.name}", total, size) as bar,
            ):
                while block := response.read(_BLOCK):
                    file.write(block)
                    bar.step(advance=len(block))
    except urllib.error.HTTPError as error:
        if error.code == 416 and size:
            return  # the file is complete; its checksum is verified later
        raise HeadstartError(f"{source.address} cannot be fetched: {error}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        # No network, an interrupted connection or an invalid response.
        raise HeadstartError(
            f"{source.address} cannot be fetched: {error}; run the same command again to continue"
        ) from None
    if total and archive.stat().st_size < total:
        raise HeadstartError(
            f"the download of {source.address} stopped after {archive.stat().st_size} of {total} bytes; "
            "run the same command again to continue"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the archive, which must contain one folder. The folder appears only when it is complete."""
    temporary = folder.with_name(folder.name + ".partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as content:
            for entry in content.infolist():
                path = PurePosixPath(entry.filename)
                if path.is_absolute() or ".." in path.parts or path.parts[:1] != (folder.name,):
                    raise HeadstartError(
                        f"{archive.name} contains {entry.filename!r}, which is not in {folder.name}/; "
                        "nothing was unpacked"
                    )
            content.extractall(temporary)
    except zipfile.BadZipFile:
        raise HeadstartError(f"{archive.name} is not a zip file; nothing was unpacked") from None
    os.replace(temporary / folder.name, folder)
    temporary.rmdir()
