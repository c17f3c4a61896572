"""Fetching, against a server on this machine that can break off and ignore what it is asked."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headstart.datasets import Download, download, fetch
from headstart.errors import HeadstartError, InputError


def packed(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


CONTENT = packed(**{"films/ratings.dat": "1::2::3\n" * 5000, "films/README": "terms"})


class Server(ThreadingHTTPServer):
    content = CONTENT
    breaks_after: int | None = None  # bytes of the next answer
    ranges = True
    seen: list[str | None]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server: Server = self.server
        asked = self.headers.get("Range")
        server.seen.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if asked and server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if server.breaks_after is None else body[: server.breaks_after])
        server.breaks_after = None

    def log_message(self, *said):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as running:
        running.seen = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def of(server: Server, content: bytes = CONTENT) -> Download:
    return Download(
        name="films",
        address=f"http://127.0.0.1:{server.server_port}/films.zip",
        md5=hashlib.md5(content).hexdigest(),
        folder="films",
        terms="Be kind.",
    )


def test_a_set_is_downloaded_checked_and_unpacked(server, tmp_path):
    folder = fetch(of(server), tmp_path / "data", agree=True)
    assert (folder / "README").read_text() == "terms"
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["films"]
    with pytest.raises(InputError, match="is there already"):
        fetch(of(server), tmp_path / "data", agree=True)


def test_nothing_is_sent_before_the_terms_are_agreed_to(server, tmp_path):
    with pytest.raises(InputError, match=r"Be kind\. To agree to them, add --agree"):
        fetch(of(server), tmp_path, agree=False)
    assert server.seen == []
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_transfer_goes_on_where_it_stopped(server, tmp_path):
    server.breaks_after = 100
    with pytest.raises(HeadstartError, match=r"broke off after 100 of \d+ bytes; run the same again"):
        fetch(of(server), tmp_path, agree=True)
    assert (fetch(of(server), tmp_path, agree=True) / "README").is_file()
    assert server.seen == [None, "bytes=100-"]


def test_a_server_that_cannot_go_on_sends_the_whole_again(server, tmp_path):
    server.breaks_after, server.ranges = 100, False
    with pytest.raises(HeadstartError):
        fetch(of(server), tmp_path, agree=True)
    assert (fetch(of(server), tmp_path, agree=True) / "README").is_file()


def test_a_transfer_that_was_whole_but_not_unpacked_is_used(server, tmp_path):
    (tmp_path / "films.zip.partial").write_bytes(CONTENT)
    assert (fetch(of(server), tmp_path, agree=True) / "README").is_file()
    assert server.seen == [f"bytes={len(CONTENT)}-"]


def test_a_wrong_checksum_is_refused_and_nothing_stays(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(HeadstartError, match=r"came with checksum .* instead of .*; what came was deleted"):
        fetch(of(server), tmp_path, agree=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "films/../../evil", "/evil", "other/file"])
def test_an_archive_cannot_write_elsewhere(server, tmp_path, name):
    server.content = packed(**{"films/a": "a", name: "evil"})
    with pytest.raises(HeadstartError, match="nothing was unpacked"):
        fetch(of(server, server.content), tmp_path / "data", agree=True)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "data" / "films").exists()


def test_no_zip_file_and_no_server_are_told(server, tmp_path):
    server.content = b"<html>"
    with pytest.raises(HeadstartError, match="is no zip file"):
        fetch(of(server, server.content), tmp_path, agree=True)
    gone = of(server).revised(address="http://127.0.0.1:1/films.zip")
    with pytest.raises(HeadstartError, match=r"cannot be fetched: .*run the same again"):
        fetch(gone, tmp_path, agree=True)


def test_what_can_be_fetched():
    assert download("movielens-1m").md5 == "c4d9eecfca2ab87c1945afe126590906"
    with pytest.raises(InputError, match="did you mean 'movielens-1m'"):
        download("movielens1m")
