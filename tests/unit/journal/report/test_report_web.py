"""The live page: who is answered, what is sent, and what a browser draws of it."""

from __future__ import annotations

import html as html_text
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_runs import SampleRun

from uneven.errors import ConfigError
from uneven.journal.report.web import WebServer

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def journal(run: Path) -> dict[Path, list[str]]:
    """A run of which half is written; the rest of each file."""
    SampleRun(iterations=12).write(run)
    rest = {}
    for path in (run / "journal").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: len(lines) // 2]))
        rest[path] = lines[len(lines) // 2 :]
    return rest


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    with WebServer(SampleRun(iterations=12).write(tmp_path / "lab"), every_s=0.05) as found:
        yield found


def asked(server: WebServer, path: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of a request."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    line.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        line.putheader(name, value)
    line.endheaders()
    answer = line.getresponse()
    found = answer.status, answer.read()
    line.close()
    return found


def path_of(server: WebServer) -> str:
    return "/" + server.address.split("/", 3)[3]


def test_who_knows_the_token_gets_the_page(server: WebServer) -> None:
    status, body = asked(server, path_of(server))
    assert status == 200
    assert b"<h1>Run lab</h1>" in body
    assert asked(server, path_of(server) + "plotly.min.js")[0] == 200
    assert asked(server, path_of(server), Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("path", ["/", "", "/events", "/wrong/", "/wrong/events", "//", "/plotly.min.js"])
def test_without_the_token_there_is_nothing(server: WebServer, path: str) -> None:
    status, body = asked(server, path or "*")
    assert status == 404
    assert b"lab" not in body


def test_nearly_the_token_is_not_the_token(server: WebServer) -> None:
    good = path_of(server)
    assert asked(server, good[:-2] + "/")[0] == 404
    assert asked(server, good.rstrip("/"))[0] == 404
    assert asked(server, good + "../")[0] == 404


def test_a_foreign_host_is_refused(server: WebServer) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", f"127.0.0.1:{server.port + 1}", ""):
        status, body = asked(server, path_of(server), Host=host)
        assert (status, b"lab" in body) == (403, False)
    assert asked(server, path_of(server) + "events", Origin="http://evil.example")[0] == 403


def test_it_listens_on_the_loopback_alone(server: WebServer) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", server.port))  # would be in use if it listened everywhere


def test_a_port_in_use_is_said(server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"port {server.port} on 127\.0\.0\.1 cannot be used"):
        WebServer(tmp_path, port=server.port)


def events(server: WebServer) -> Iterator[dict[str, object]]:
    """What a page is sent."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    line.request("GET", path_of(server) + "events")
    answer = line.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream"
    try:
        while text := answer.readline():
            if text.startswith(b"data: "):
                yield json.loads(text.removeprefix(b"data: "))
    finally:
        answer.close()
        line.close()


def titles(page: dict[str, object]) -> list[str]:
    parts = page["parts"]
    assert isinstance(parts, list)
    return [part["title"] for part in parts if part["figure"]]


def test_a_growing_run_is_sent_again(tmp_path: Path) -> None:
    rest = journal(tmp_path / "lab")
    with WebServer(tmp_path / "lab", every_s=0.05) as server:
        stream = events(server)
        first = next(stream)
        assert "Where each worker's time goes" in titles(first)
        for path, lines in rest.items():
            with path.open("a") as file:
                file.writelines(lines)
        for page in stream:  # each file may be seen by itself
            if "12iterations" in re.sub(r"<.*?>", "", json.dumps(page["parts"])):
                break
        stream.close()


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    with WebServer(tmp_path, every_s=0.05) as server:
        stream = events(server)
        page = next(stream)
        stream.close()
    assert page["parts"] == []
    assert "journal" in str(page["problem"])


@pytest.mark.skipif(BROWSER is None, reason="no browser")
def test_a_browser_draws_it(server: WebServer) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for the name of chromium's socket
        command = [
            *(str(BROWSER), "--headless", "--disable-gpu", f"--user-data-dir={folder}/profile"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *("--dump-dom", server.address),
        ]
        env = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout, done.stderr
    text = html_text.unescape(done.stdout)
    assert "Where each worker's time goes" in text
    assert text.count('class="plot-container') >= 5, "Plotly has drawn"
    assert "drawn at" in text
    assert "Refused to" not in done.stderr
