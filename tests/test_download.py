"""Fetching: the real code against a real server on this machine, sound and broken."""

import gzip
import hashlib
import http.server
import socket
import threading

import pytest

from labkit.datasets import download
from labkit.datasets.download import DataFile, available, fetch, mismatch, require, status, verify
from labkit.errors import RequestError, WorkError

GOOD = gzip.compress(b"the right bytes" * 500, mtime=0)
SUM = hashlib.sha256(GOOD).hexdigest()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty cache, no LABKIT_DATA, and no proxy between this test and its own server."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


@pytest.fixture
def server():
    """Serves `pages`, a dict from path to (status, bytes, declared length); counts what was asked."""
    pages, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            code, body, length = pages.get(self.path, (404, b"", 0))
            self.send_response(code)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        running.base = f"http://127.0.0.1:{running.server_port}"
        running.asked = asked
        running.put = lambda path, body, code=200, length=None: pages.__setitem__(
            path, (code, body, len(body) if length is None else length)
        )
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def dead():
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def data_file(*bases: str, name: str = "part.gz", content: str = "") -> DataFile:
    return DataFile(name, tuple(f"{base}/{name}" for base in bases), SUM, content)


def left_in(folder) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_good_file_is_fetched_once(server, here):
    server.put("/part.gz", GOOD)
    file = data_file(server.base)
    for _ in range(2):
        assert fetch(file, here / "to").read_bytes() == GOOD
    assert server.asked == ["/part.gz"] and left_in(here / "to") == ["part.gz"]


@pytest.mark.parametrize("first", ["damaged", "missing", "cut short", "dead"])
def test_the_second_source_steps_in(server, dead, here, first):
    server.put("/b/part.gz", GOOD)
    if first == "damaged":
        server.put("/a/part.gz", GOOD[:-1] + b"!")
    if first == "cut short":
        server.put("/a/part.gz", GOOD[:10], length=len(GOOD))
    file = data_file(dead if first == "dead" else server.base + "/a", server.base + "/b")
    assert fetch(file, here / "to").read_bytes() == GOOD
    assert left_in(here / "to") == ["part.gz"]
    assert server.asked == (["/b/part.gz"] if first == "dead" else ["/a/part.gz", "/b/part.gz"])


def test_wrong_bytes_everywhere_name_both_sums_and_leave_nothing(server, here):
    wrong = b"an error page"
    server.put("/a/part.gz", wrong)
    server.put("/b/part.gz", wrong)
    with pytest.raises(WorkError) as caught:
        fetch(data_file(server.base + "/a", server.base + "/b"), here / "to")
    text = str(caught.value)
    assert "part.gz" in text and SUM in text and hashlib.sha256(wrong).hexdigest() in text and "\n" not in text
    assert left_in(here) == []


def test_both_sources_dead_is_one_clear_line_and_leaves_nothing(dead, here):
    with pytest.raises(RequestError) as caught:
        fetch(data_file(dead, dead + "/b"), here / "to")
    text = str(caught.value)
    assert "cannot download part.gz: no answer from" in text and text.count(dead) == 2 and "\n" not in text
    assert left_in(here) == []


def test_a_damaged_copy_in_the_cache_is_replaced(server, here):
    server.put("/part.gz", GOOD)
    (here / "to").mkdir()
    (here / "to" / "part.gz").write_bytes(b"half")
    assert fetch(data_file(server.base), here / "to").read_bytes() == GOOD


def test_a_failed_replacement_keeps_what_was_there(dead, here):
    (here / "to").mkdir()
    (here / "to" / "part.gz").write_bytes(b"half")
    with pytest.raises(RequestError):
        fetch(data_file(dead), here / "to")
    assert (here / "to" / "part.gz").read_bytes() == b"half" and left_in(here / "to") == ["part.gz"]


def test_a_folder_that_cannot_be_made_is_a_wrong_request(dead, here):
    (here / "file").write_bytes(b"")
    with pytest.raises(RequestError, match="cannot make .*set LABKIT_CACHE"):
        fetch(data_file(dead), here / "file" / "to")


def test_a_repacked_copy_is_known_by_its_content(here):
    path = here / "part.gz"
    content = hashlib.sha256(gzip.decompress(GOOD)).hexdigest()
    path.write_bytes(gzip.compress(gzip.decompress(GOOD), 1, mtime=1))
    assert not mismatch(data_file(content=content), path)
    assert "wrong checksum" in mismatch(data_file(), path)
    path.write_bytes(gzip.compress(b"other"))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert SUM in mismatch(data_file(content=content), path) and found in mismatch(data_file(content=content), path)


# whole data sets


@pytest.fixture
def tiny(monkeypatch):
    """Registers `mnist` and `fashion-mnist` as one-file sets that share the file name, as the real ones do."""

    def register(*bases: str):
        other = gzip.compress(b"clothes", mtime=0)
        for name, data in (("mnist", GOOD), ("fashion-mnist", other)):
            monkeypatch.setitem(
                download.FILES,
                name,
                (
                    DataFile(
                        "part.gz", tuple(f"{base}/{name}/part.gz" for base in bases), hashlib.sha256(data).hexdigest()
                    ),
                ),
            )
        return {"mnist": GOOD, "fashion-mnist": other}

    return register


def test_require_downloads_into_the_cache_and_then_stays_offline(server, tiny, here):
    for name, data in tiny(server.base).items():
        server.put(f"/{name}/part.gz", data)
    assert not available("mnist")
    folder = require("mnist")
    assert folder == here / "cache" / "mnist" and available("mnist") and not available("fashion-mnist")
    assert verify("mnist").where == str(folder)
    assert require("mnist") == folder and server.asked == ["/mnist/part.gz"]


def test_offline_says_what_where_and_what_else(tiny, dead, here, monkeypatch):
    tiny(dead, dead)
    monkeypatch.setenv("LABKIT_DATA", str(here / "mine"))
    with pytest.raises(RequestError) as caught:
        require("mnist")
    text = str(caught.value)
    for part in (
        "'mnist'",
        str(here / "mine"),
        str(here / "cache"),
        "mnist5k",
        "procedural",
        "set LABKIT_DATA",
        "part.gz",
    ):
        assert part in text
    assert "\n" not in text and left_in(here) == []


@pytest.mark.parametrize("inside", [True, False])
def test_labkit_data_holds_the_files_directly_or_in_a_named_folder(tiny, dead, here, monkeypatch, inside):
    tiny(dead)
    folder = here / "mine" / "mnist" if inside else here / "mine"
    folder.mkdir(parents=True)
    (folder / "part.gz").write_bytes(GOOD)
    monkeypatch.setenv("LABKIT_DATA", str(here / "mine"))
    assert require("mnist") == folder and available("mnist")


def test_a_folder_of_fashion_is_not_taken_for_digits(tiny, dead, here, monkeypatch):
    clothes = tiny(dead)["fashion-mnist"]
    (here / "part.gz").write_bytes(clothes)
    monkeypatch.setenv("LABKIT_DATA", str(here))
    assert available("fashion-mnist") and not available("mnist")
    with pytest.raises(RequestError, match="'mnist' is not here"):
        require("mnist")


def test_damage_in_labkit_data_is_named_and_never_papered_over(server, tiny, here, monkeypatch):
    server.put("/mnist/part.gz", tiny(server.base)["mnist"])
    (here / "part.gz").write_bytes(b"rotten")
    monkeypatch.setenv("LABKIT_DATA", str(here))
    rotten = hashlib.sha256(b"rotten").hexdigest()
    for check in (require, verify):
        with pytest.raises(WorkError) as caught:
            check("mnist")
        assert str(here / "part.gz") in str(caught.value) and SUM in str(caught.value) and rotten in str(caught.value)
    assert server.asked == [] and not available("mnist")


def test_status_tells_the_four_states_apart(tiny, dead, here):
    contents = tiny(dead)
    for name, data in (("mnist", contents["mnist"]), ("fashion-mnist", b"rotten")):
        (here / "cache" / name).mkdir(parents=True)
        (here / "cache" / name / "part.gz").write_bytes(data)
    states = {row.name: row.state for row in status()}
    assert states == {
        "mnist5k": "bundled",
        "procedural": "bundled",
        "mnist": "present",
        "fashion-mnist": "damaged",
        "cifar10": "missing",
        "ptb": "missing",
    }
    assert next(row.files for row in status() if row.name == "cifar10") == ("cifar-10-binary.tar.gz",)


def test_verify_of_what_is_not_here_is_a_wrong_request():
    with pytest.raises(RequestError, match="'cifar10' is not in .*set LABKIT_DATA"):
        verify("cifar10")
    assert verify("mnist5k").state == "bundled"


@pytest.mark.parametrize("check", [available, require, verify])
def test_unknown_names_are_refused(check):
    with pytest.raises(RequestError, match="unknown dataset 'svhn'; allowed: mnist5k"):
        check("svhn")


def test_every_file_has_its_sources_on_different_hosts_and_full_sums():
    for name, files in download.FILES.items():
        for file in files:
            hosts = {source.split("/")[2] for source in file.sources}
            assert len(hosts) == (1 if name in download.TEXTS else 2), name
            assert all(source.endswith("/" + file.name) for source in file.sources)
            for text in filter(None, (file.sha256, file.content)):
                assert len(text) == 64 and set(text) <= set("0123456789abcdef")
    sums = [file.sha256 for files in download.FILES.values() for file in files]
    assert len(set(sums)) == len(sums)
