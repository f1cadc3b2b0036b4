"""``uneven tables serve``: look-ups over HTTP and ZeroMQ; see :mod:`uneven.embedding.pure.lookup_request`.

Over HTTP the answer is JSON, or with ``Accept: application/octet-stream`` its description, a newline and the numbers.
Over ZeroMQ a request is the last frame of a message. Frames before it come back, followed by the frames of the answer.
"""

import ipaddress
import json
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import zmq

from uneven.embedding.pure.lookup_request import MOST_BYTES, LookupAnswer, read_request
from uneven.embedding.pure.route import GivenFeatures
from uneven.embedding.table_client import TableClient
from uneven.embedding.table_reader import Lookups, saved_tables, training_tables
from uneven.errors import CheckpointError, ConfigError, DataError, LaunchError, PeerError, UnevenError, access, reason
from uneven.journal.report.http_server import HttpServer, TokenHandler
from uneven.runtime.messages.keys import SERVER_KEY, make_keys
from uneven.runtime.messages.sockets import ShardSockets, ShardThread

SERVING = "serving"  # the folder in a run directory for the keys, the address and the token of the service
_LOOK_S = 1.0  # between two questions whether the training continues
_TOGETHER = 256  # messages that are taken from a socket together
_FRAMES = 4  # of a message: the route, an envelope, and the request
_JSON, _RAW = "application/json", "application/octet-stream"


def serve(
    folder: Path, http: int | None, zeromq: int | None, host: str, silence_s: float, told: Callable[[str], None]
) -> NoReturn:
    """Serve the tables of a run directory or a saved folder until KeyboardInterrupt; ``told`` gets the addresses.

    Raises:
        ConfigError: a port is in use, or ``host`` is not an address of this machine.
        CheckpointError: no training has tables there, and none are saved.
        LaunchError: the training has ended, and has saved nothing.
    """
    with access(f"look into {folder}"):
        folder.exists()  # raises for a name that no file can have
    try:
        host = socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--bind {host}: {reason(error)}; give an address of this machine") from error
    lookups = Lookups()
    with ExitStack() as stack:
        if (training := training_tables(folder, silence_s)) is None:
            _use_saved(lookups, folder, stack)
        else:
            stack.callback(training.close)
            lookups.use(training)
        if http is not None:
            token = "" if ipaddress.ip_address(host).is_loopback else _token(folder / SERVING)
            server = stack.enter_context(HttpServer(_LookupHandler, http, host, lookups=lookups, token=token))
            told(f"look-ups at {server.address}lookup (until Ctrl-C)")
        if zeromq is not None:
            sockets = LookupSockets(folder / SERVING, zeromq, host, lookups)
            stack.enter_context(ShardThread(sockets, "uneven-lookups"))
            told(f"look-ups at {sockets.endpoint} with the keys in {folder / SERVING} (until Ctrl-C)")
        if training is not None:
            _follow(training, silence_s)
            told(f"no table server has answered for {silence_s:g} s: the training has ended")
            try:
                updates = _use_saved(lookups, folder, stack)
            except CheckpointError as error:
                raise LaunchError(f"{error}; or give the tables save_every_s") from error
            told(f"the rows are now those of the last save, after {updates:,} updates")
        while True:
            time.sleep(3600)


def _use_saved(lookups: Lookups, folder: Path, stack: ExitStack) -> int:
    tables, updates = saved_tables(folder, stack)
    lookups.use(tables, updates)
    return updates


def _follow(training: TableClient, silence_s: float) -> None:
    """Return when no table server has answered for ``silence_s``."""
    heard_s = time.monotonic()
    while time.monotonic() - heard_s < silence_s:
        with suppress(PeerError):
            training.updates()
            heard_s = time.monotonic()
        time.sleep(_LOOK_S)


def _token(directory: Path) -> str:
    """Return the token of the service, the same after a restart; only who may read the directory knows it."""
    path = directory / "token"
    with access(f"write {path}"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        if not path.read_text(encoding="ascii"):
            path.write_text(secrets.token_urlsafe(24), encoding="ascii")
        return path.read_text(encoding="ascii")


class _LookupHandler(TokenHandler):
    lookups: Lookups
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    wbufsize = -1  # one segment for headers and body
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        found = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return found

    def do_GET(self) -> None:
        rest, lookups = self.asked(), self.lookups
        if rest == "tables":
            tables = {one.name: {"rows": one.num_embeddings, "dim": one.embedding_dim} for one in lookups.spec.tables}
            self._say({"features": GivenFeatures(lookups.spec).names, "tables": tables})
        elif rest == "health":
            try:
                self._say({"updates": lookups.updates(), "restarts": lookups.tables.restarts})
            except PeerError as error:
                self._refuse(503, error)
        elif rest == "metrics":
            lines = (f"uneven_lookup_{name}_total {lookups.counts[name]}\n" for name in sorted(lookups.counts))
            self.answer("text/plain; version=0.0.4", "".join(lines).encode())
        elif rest is not None:
            self.send_error(404)

    def do_POST(self) -> None:
        rest, length = self.asked(), self.headers.get("Content-Length", "")
        if rest is None:
            return
        if rest != "lookup" or not (length.isdecimal() and len(length) < 9):
            self.send_error(404 if rest != "lookup" else 411)
            return
        if int(length) > MOST_BYTES:
            self.send_error(413)
            return
        try:
            (found,) = self.lookups.answers([read_request(self.rfile.read(int(length)), self.lookups.spec)])
        except DataError as error:
            found = error
        if isinstance(found, UnevenError):
            self._refuse(400 if isinstance(found, DataError) else 503, found)
        elif _RAW in self.headers.get("Accept", ""):
            self.answer(_RAW, b"\n".join(found.frames))
        else:
            self.answer(_JSON, found.text)

    def _refuse(self, status: int, error: UnevenError) -> None:
        self._say({"error": str(error)}, status)

    def _say(self, what: dict[str, Any], status: int = 200) -> None:
        self.answer(_JSON, json.dumps(what).encode(), status)


class LookupSockets(ShardSockets):
    """The sockets of the service, which anyone with the keys in its folder can reach."""

    def __init__(self, directory: Path, port: int, host: str, lookups: Lookups) -> None:
        if not (directory / SERVER_KEY).exists():
            with access(f"write {directory}"):
                make_keys(directory)
        self._lookups = lookups
        super().__init__(directory, 0, f"tcp://{host}{f':{port}' * bool(port)}", lookups, list)

    def _take(self, socket: Any) -> None:
        taken: list[list[bytes]] = []
        with suppress(zmq.Again):
            while len(taken) < _TOGETHER:
                taken.append(socket.recv_multipart(zmq.NOBLOCK))
        asked: list[Any] = []
        for frames in taken:
            try:
                asked.append(read_request(frames[-1], self._lookups.spec))
            except DataError as error:
                asked.append(error)
        found = iter(self._lookups.answers([one for one in asked if not isinstance(one, DataError)]))
        for frames, one in zip(taken, asked, strict=True):
            answer = one if isinstance(one, DataError) else next(found)
            head = frames[: -1 if len(frames) <= _FRAMES else 1]  # a long envelope does not come back
            self._reply(socket, [*head, *_frames(answer)])


def _frames(answer: LookupAnswer | UnevenError) -> list[bytes]:
    if isinstance(answer, LookupAnswer):
        return answer.frames
    return [json.dumps({"error": str(answer)}).encode()]
