"""``uneven tables serve``: another process reads the tables of a training, and saved tables."""

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zmq

from uneven.cli import main
from uneven.embedding import EmbeddingBagCollection, Table
from uneven.embedding.pure.lookup_request import MOST_BYTES
from uneven.embedding.table_host import PROGRAM, TABLES, TableHost
from uneven.embedding.table_service import serve
from uneven.errors import CheckpointError, ConfigError, LaunchError
from uneven.runtime.messages.keys import address, client_keys, make_keys
from uneven.runtime.messages.process import ShardKeeper

WITHIN_S = 60
IDS = {"a": [3, 7], "b": [[1, 2], []]}


def collection(**more: Any) -> EmbeddingBagCollection:
    return EmbeddingBagCollection([Table(100, 4, "a"), Table(100, 2, "b", pooling="mean")], **more)


def expected(tables: EmbeddingBagCollection) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = tables({"a": torch.tensor([3, 7]), "b": (torch.tensor([1, 2]), torch.tensor([0, 2]))})
        return found.values().numpy()  # type: ignore[attr-defined]


class Service:
    """The process, and the addresses that it prints."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "uneven", "tables", "serve", str(folder), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.folder = folder

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def address(self) -> str:
        """Of the next face; what it prints ends with a note."""
        said = self.line()
        assert " at " in said, said + self.process.stderr.read()  # type: ignore[union-attr]
        return said.split(" at ")[1].split(" ")[0].rstrip(",").removesuffix("lookup")

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, out + err


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Service]:
    service = Service(folder, *options)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.communicate()


def over_http(url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    asked = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=WITHIN_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def looked_up(url: str, ids: Any = IDS) -> tuple[int, Any]:
    status, found = over_http(url + "lookup", json.dumps({"ids": ids}).encode())
    return status, json.loads(found)


def features(rows: np.ndarray) -> dict[str, Any]:
    return {"a": rows[:, :4].tolist(), "b": rows[:, 4:].tolist()}


@contextmanager
def line_to(folder: Path, *, keys: bool = True, kind: int = zmq.REQ, far: bool = True) -> Iterator[Any]:
    """A socket of another program; the keys and the address are in the folder."""
    found = address(folder / "serving", 0)
    assert found is not None
    with zmq.Context() as context, context.socket(kind) as line:
        line.linger, line.rcvtimeo = 0, 1000 * WITHIN_S
        if keys:
            client_keys(folder / "serving").join(line)
        line.connect(found.remote if far else str(found.local))
        yield line


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNEVEN_RUN", str(tmp_path / "run"))
    return tmp_path / "run"


def train(tables: EmbeddingBagCollection, steps: int = 1) -> None:
    for step in range(steps):
        tables(torch.tensor([[3, 1], [7, 2 + step % 2]])).values().square().sum().backward()
    tables.flush()


def strangers_and_garbage_get_nothing(run: Path, url: str, rows: np.ndarray) -> None:
    for name in ("client.key", "server.key"):
        assert stat.S_IMODE((run / "serving" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((run / "serving").stat().st_mode) == 0o700
    for keys in (False, None):  # none, and those of trainers
        with line_to(run, keys=False) as line:
            if keys is None:
                mine, theirs = client_keys(run / TABLES), client_keys(run / "serving")
                mine.join(line)
                line.curve_serverkey = theirs.other.encode()
            line.rcvtimeo = 500
            line.send_json({"ids": IDS})
            with pytest.raises(zmq.Again):
                line.recv_multipart()
    chance = random.Random(0)
    good = json.dumps({"ids": IDS}).encode()
    with line_to(run, kind=zmq.DEALER) as line:
        for number in range(500):
            cut = chance.randrange(len(good))
            bad = good[:cut] + chance.randbytes(chance.randrange(9)) + good[cut + 1 :]
            line.send_multipart([b"%d" % number, chance.choice([bad, good[:cut], b"", bad * 99])])
            number_of, head, *rest = line.recv_multipart()
            assert number_of == b"%d" % number
            assert "error" in json.loads(head) or rest
        line.send_multipart([b"x"] * 500)
        (said,) = line.recv_multipart()
        assert "error" in json.loads(said)
        line.send_multipart([b"", good])
        assert len(line.recv_multipart()) == 3, "it answers as before"
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    for head, status in (
        (
            b"POST /lookup HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (url[7:-1].encode(), MOST_BYTES + 1),
            b"413",
        ),
        (b"POST /lookup HTTP/1.1\r\nHost: %s\r\n\r\n" % url[7:-1].encode(), b"411"),
        (b"POST /lookup HTTP/1.1\r\nHost: %s\r\nContent-Length: -1\r\n\r\n" % url[7:-1].encode(), b"411"),
        (b"POST /lookup HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}", b"403"),
        (b"\x16\x03\x01\x00\xff" + bytes(200) + b"\r\n\r\n", b"400"),
    ):
        with socket.create_connection((host, int(port)), timeout=WITHIN_S) as line:
            line.sendall(head)
            assert status in line.recv(1 << 16).split(b"\n")[0] + b"400" * (status == b"400")
    assert looked_up(url, {"a": [3], "b": [100]}) == (
        400,
        {"error": "feature 'b' has the id 100: table 'b' has the rows 0 to 99"},
    )
    assert looked_up(url, {"a": [3]})[0] == 400
    assert over_http(url + "lookups", b"{}")[0] == 404
    assert over_http(url)[0] == 404
    assert looked_up(url)[1]["features"] == features(rows), "the rows are the trainer's alone"


def test_look_ups_are_the_rows_of_a_training_and_survive_its_servers(run: Path) -> None:
    with ShardKeeper(run / TABLES, 2, 1, program=PROGRAM) as servers:
        tables = collection(save_every_s=0.05)
        train(tables)
        with serving(run, "--http", "0", "--zmq", "0") as service:
            url, at = service.address(), service.address()
            assert url.startswith("http://127.0.0.1:")
            assert at.startswith("tcp://127.0.0.1:")
            before = tables.stats()
            for _ in range(3):
                train(tables)
                rows = expected(tables)
                status, found = looked_up(url)
                assert (status, found["features"]) == (200, features(rows))
                assert found["updates"] >= 2
                with line_to(run) as line:
                    line.send_json({"ids": IDS})
                    head, numbers = line.recv_multipart()
                said = json.loads(head)
                assert np.array_equal(np.frombuffer(numbers, "<f4").reshape(said["shape"]), rows)
                assert said["columns"] == {"a": [0, 4], "b": [4, 6]}
            status, raw = over_http(
                url + "lookup", json.dumps({"ids": IDS}).encode(), Accept="application/octet-stream"
            )
            assert raw.partition(b"\n")[2] == numbers
            after = tables.stats()
            assert sum(after.staleness.values()) - sum(before.staleness.values()) == 3 * 2, "of the trainer's alone"
            assert json.loads(over_http(url + "tables")[1])["features"] == ["a", "b"]
            assert json.loads(over_http(url + "health")[1])["restarts"] == 0
            assert b"uneven_lookup_requests_total 7\n" in over_http(url + "metrics")[1]

            while not tables.stats().counts["saved"]:
                train(tables)
            os.kill(servers.pids()[0], signal.SIGKILL)
            train(tables)  # until it is there again
            while looked_up(url)[0] != 200:
                pass
            assert looked_up(url)[1]["features"] == features(expected(tables))

            strangers_and_garbage_get_nothing(run, url, expected(tables))
            applied = tables.stats().counts["applied"]
            train(tables)
            assert tables.stats().counts["applied"] == applied + 2, "the trainer's alone"
            assert service.end() == (0, "")
        tables.close()


class Visit:
    """Serves in this process: looks around at each line that the service prints, and ends it by a KeyboardInterrupt."""

    def __init__(self, *steps: Callable[[str], None]) -> None:
        self.steps = iter(steps)
        self.url = ""

    def __call__(self, text: str) -> None:
        self.url = text.split(" ")[2].removesuffix("lookup") if "look-ups at" in text else self.url
        next(self.steps)(text)

    def of(self, folder: Path, http: int | None = 0, host: str = "127.0.0.1", zeromq: int | None = None) -> None:
        serve(folder, http, zeromq, host, 1.0, self)


def test_after_a_training_its_last_save_is_served(run: Path) -> None:
    make_keys(run / TABLES)
    with ExitStack() as hosts:
        for number in range(2):
            hosts.enter_context(TableHost(run / TABLES, number, 1))
        tables = collection(save_every_s=0.05)
        train(tables, 2)
        rows = expected(tables)

        def trains(text: str) -> None:
            assert looked_up(visit.url)[1]["features"] == features(rows)
            saved = tables.stats().counts["saved"]
            while tables.stats().counts["saved"] < saved + 8:  # of both servers, after the last update
                pass
            tables.save_checkpoint(run / "asked")
            tables.close()
            hosts.close()
            status, said = looked_up(visit.url)
            assert (status, "no answer to a lookup within 5 s from shard" in said["error"]) == (503, True)

        def has_ended(text: str) -> None:
            assert "the training has ended" in text

        def goes_on(text: str) -> None:
            assert "after 2 updates" in text
            found = looked_up(visit.url)[1]
            assert (found["updates"], found["features"]) == (2, features(rows))
            raise KeyboardInterrupt

        visit = Visit(trains, has_ended, goes_on)
        with pytest.raises(KeyboardInterrupt):
            visit.of(run)

    def as_asked(text: str) -> None:
        assert looked_up(visit.url)[1]["features"] == features(rows)
        assert json.loads(over_http(visit.url + "health")[1])["updates"] == 2
        raise KeyboardInterrupt

    visit = Visit(as_asked)
    with pytest.raises(KeyboardInterrupt):
        visit.of(run / "asked")


def test_saved_tables_are_served_where_their_disk_is_not(run: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    tables = EmbeddingBagCollection(
        [Table(100, 4, "a", memory="4kB", path=str(tmp_path / "disk")), Table(100, 3, "b", dtype="int8")],
        in_state_dict=False,
    )
    train(tables)
    rows = [expected(tables)[0, :4].tolist()]
    tables.save_checkpoint(run)
    tables.close()
    (tmp_path / "disk").rmdir()

    def look(text: str) -> None:
        assert looked_up(visit.url, {"a": [3], "b": [3]})[1]["features"]["a"] == rows
        assert looked_up(visit.url, {"a": [[]], "b": [[]]})[1]["features"] == {"a": [[0.0] * 4], "b": [[0.0] * 3]}
        raise KeyboardInterrupt

    visit = Visit(look)
    with pytest.raises(KeyboardInterrupt):
        visit.of(run)


@pytest.mark.parametrize("port", [0, 80])
def test_clients_may_wait_for_100_and_leave_out_port_80(run: Path, port: int) -> None:
    tables = collection()
    tables.save_checkpoint(run)
    tables.close()

    def look(text: str) -> None:
        host, _, at = visit.url.removeprefix("http://").rstrip("/").partition(":")
        named = host if port else f"{host}:{at}"
        with socket.create_connection((host, int(at)), timeout=WITHIN_S) as line:
            line.sendall(f"POST /lookup HTTP/1.1\r\nHost: {named}\r\nExpect: 100-continue\r\n".encode())
            line.sendall(b"Content-Length: %d\r\n\r\n" % len(request))
            assert line.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
            line.sendall(request)
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        raise KeyboardInterrupt

    request, visit = json.dumps({"ids": IDS}).encode(), Visit(look)
    try:
        visit.of(run, http=port)
    except ConfigError as error:
        pytest.skip(str(error))  # port 80 is in use, or needs rights
    except KeyboardInterrupt:
        pass


def test_beyond_loopback_http_needs_the_token_which_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_RUN")
    tables = collection()
    tables.save_checkpoint(run)
    tables.close()
    seen = []

    def look(text: str) -> None:
        url = visit.url.replace("0.0.0.0", "127.0.0.1")
        token = url.rstrip("/").rsplit("/", 1)[1]
        assert looked_up(url)[0] == 200
        assert over_http(url.replace(token, "") + "lookup", b"{}")[0] == 404
        assert over_http(url.replace(token, token[:-1] + "~") + "health")[0] == 404
        seen.append(token)
        raise KeyboardInterrupt

    for _ in range(2):
        visit = Visit(look)
        with pytest.raises(KeyboardInterrupt):
            visit.of(run, host="0.0.0.0")
    assert seen[0] == seen[1] == (run / "serving" / "token").read_text()
    assert stat.S_IMODE((run / "serving" / "token").stat().st_mode) == 0o600


def test_what_cannot_be_served_is_said(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tables", "serve", str(run)])
    assert ended.value.code == 2
    assert "nothing to listen on" in capfd.readouterr().err
    with pytest.raises(CheckpointError, match=r"no training with table servers.*no saved tables"):
        Visit().of(run)
    with pytest.raises(ConfigError, match=r"--bind no\.such\.host\.invalid"):
        Visit().of(run, host="no.such.host.invalid")
    make_keys(run / TABLES)
    with TableHost(run / TABLES, 0, 1) as host:
        with pytest.raises(CheckpointError):  # no worker has made tables yet
            Visit().of(run)
        tables = collection()
        train(tables)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(ConfigError, match="cannot be used"):
                Visit().of(run, http=taken.getsockname()[1])
            with pytest.raises(ConfigError, match="cannot listen"):
                Visit().of(run, http=None, zeromq=taken.getsockname()[1])

        def ends(text: str) -> None:
            tables.close()
            host.close()

        with pytest.raises(LaunchError, match=r"no saved tables.*save_every_s") as failed:
            Visit(ends, lambda text: None).of(run)
        assert failed.value.exit_code == 1
