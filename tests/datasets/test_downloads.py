"""Downloads from a local server that can interrupt the transfer and ignore the requested range."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headstart.datasets import Download, download, fetch
from headstart.errors import HeadstartError, InputError


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


CONTENT = zipped(**{"films/ratings.dat": "1::2::3\n" * 5000, "films/README": "terms"})


class Server(ThreadingHTTPServer):
    content = CONTENT
    breaks_after: int | None = None  # bytes of the next response
    ranges = True
    requested: list[str | None]  # the Range header of each request


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server: Server = self.server
        requested = self.headers.get("Range")
        server.requested.append(requested)
        partial = requested is not None and server.ranges
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if partial else 0
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if server.breaks_after is None else body[: server.breaks_after])
        server.breaks_after = None

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as running:
        running.requested = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def download_from(server: Server, content: bytes = CONTENT) -> Download:
    return Download(
        name="films",
        address=f"http://127.0.0.1:{server.server_port}/films.zip",
        md5=hashlib.md5(content).hexdigest(),
        folder="films",
        terms="Be kind.",
    )


def test_a_data_set_is_downloaded_verified_and_unpacked(server, tmp_path):
    folder = fetch(download_from(server), tmp_path / "data", agree=True)
    assert (folder / "README").read_text() == "terms"
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["films"]
    with pytest.raises(InputError, match="already exists; delete it"):
        fetch(download_from(server), tmp_path / "data", agree=True)


def test_nothing_is_requested_before_the_user_agrees_to_the_terms(server, tmp_path):
    with pytest.raises(InputError, match=r"Be kind\. To agree to them, add --agree"):
        fetch(download_from(server), tmp_path, agree=False)
    assert server.requested == []
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_continues(server, tmp_path):
    server.breaks_after = 100
    with pytest.raises(HeadstartError, match=r"stopped after 100 of \d+ bytes; run the same command again"):
        fetch(download_from(server), tmp_path, agree=True)
    assert (fetch(download_from(server), tmp_path, agree=True) / "README").is_file()
    assert server.requested == [None, "bytes=100-"]


def test_a_server_without_ranges_sends_the_whole_file_again(server, tmp_path):
    server.breaks_after, server.ranges = 100, False
    with pytest.raises(HeadstartError):
        fetch(download_from(server), tmp_path, agree=True)
    assert (fetch(download_from(server), tmp_path, agree=True) / "README").is_file()


def test_a_complete_download_that_was_not_unpacked_is_used(server, tmp_path):
    (tmp_path / "films.zip.partial").write_bytes(CONTENT)
    assert (fetch(download_from(server), tmp_path, agree=True) / "README").is_file()
    assert server.requested == [f"bytes={len(CONTENT)}-"]


def test_a_file_with_a_wrong_checksum_is_deleted(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(HeadstartError, match=r"has checksum .* instead of .* and was deleted"):
        fetch(download_from(server), tmp_path, agree=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "films/../../evil", "/evil", "other/file"])
def test_an_archive_cannot_write_elsewhere(server, tmp_path, name):
    server.content = zipped(**{"films/a": "a", name: "evil"})
    with pytest.raises(HeadstartError, match="nothing was unpacked"):
        fetch(download_from(server, server.content), tmp_path / "data", agree=True)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "data" / "films").exists()


def test_the_errors_without_a_zip_file_and_without_a_server(server, tmp_path):
    server.content = b"<html>"
    with pytest.raises(HeadstartError, match="is not a zip file"):
        fetch(download_from(server, server.content), tmp_path, agree=True)
    gone = download_from(server).revised(address="http://127.0.0.1:1/films.zip")
    with pytest.raises(HeadstartError, match=r"cannot be fetched: .*run the same command again"):
        fetch(gone, tmp_path, agree=True)


def test_downloads_by_name():
    assert download("movielens-1m").md5 == "c4d9eecfca2ab87c1945afe126590906"
    with pytest.raises(InputError, match="did you mean 'movielens-1m'"):
        download("movielens1m")
