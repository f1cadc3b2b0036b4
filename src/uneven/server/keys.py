"""Keys of a run and addresses of its shards, in a directory that only their owner can enter.

``server.key`` is for shards: their own key pair and the workers' public key. ``client.key`` is for workers: theirs and
the shards' public key. CurveZMQ encrypts with them and lets nobody else in. Workers on a shard's own machine talk to it
through a socket in the directory instead, which the kernel keeps for its owner and which needs no encryption.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from uneven.errors import ConfigError

SERVER = "server"
"""Folder of a run directory for all this."""

SERVER_KEY = "server.key"
CLIENT_KEY = "client.key"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LONGEST_PATH = 107
"""Longest path of a socket in the file system, in bytes, on Linux."""


class Address(NamedTuple):
    """Where a shard is.

    Attributes:
        remote: for everybody, encrypted.
        local: for processes on the same machine, in the directory; None on other machines.
        pid: of its process, which is another one after each start.
    """

    remote: str
    local: str | None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Keys:
    """One side's key pair and the other side's public key, in Z85."""

    public: str
    secret: str
    other: str

    def join(self, socket: Any) -> None:
        """Make ``socket`` a worker's, before it connects."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_serverkey = self.other.encode()

    def serve(self, socket: Any, domain: bytes) -> None:
        """Make ``socket`` a shard's, before it binds."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_server, socket.zap_domain = True, domain


def make_keys(directory: Path) -> None:
    """Make the directory and new keys in it, for one run.

    Raises:
        ConfigError: ``directory`` has keys already.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (server, server_secret), (client, client_secret) = (
        (public.decode(), secret.decode()) for public, secret in (zmq.curve_keypair(), zmq.curve_keypair())
    )
    for name, keys in (
        (SERVER_KEY, Keys(server, server_secret, client)),
        (CLIENT_KEY, Keys(client, client_secret, server)),
    ):
        text = json.dumps({"public": keys.public, "secret": keys.secret, "other": keys.other})
        try:
            handle = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{directory / name} exists: make new keys in a new directory for each run") from None
        with os.fdopen(handle, "w") as file:
            file.write(text)


def server_keys(directory: Path) -> Keys:
    """For a shard. Raises as :func:`client_keys`."""
    return _read(directory / SERVER_KEY)


def client_keys(directory: Path) -> Keys:
    """For a worker.

    Raises:
        ConfigError: there are none, they are damaged, or others may read them.
    """
    return _read(directory / CLIENT_KEY)


def local_target(directory: Path, shard: int) -> str | None:
    """Where a shard may listen for its own machine; None where that is not possible."""
    path = str(directory.resolve() / f"shard-{shard}.socket")
    return f"ipc://{path}" if _BOOT.exists() and len(path.encode()) <= _LONGEST_PATH else None


def publish(directory: Path, shard: int, remote: str, local: str | None = None) -> None:
    """Tell workers where a shard is, all at once or not at all."""
    path = directory / f"shard-{shard}.address"
    new = path.with_suffix(".new")
    new.write_text(
        json.dumps({"remote": remote, "local": local, "boot": _boot(), "pid": os.getpid()}), encoding="utf-8"
    )
    new.replace(path)


def address(directory: Path, shard: int) -> Address | None:
    """Where a shard is or was last; None where it has not announced itself yet."""
    try:
        found = json.loads((directory / f"shard-{shard}.address").read_bytes())
    except FileNotFoundError:
        return None
    return Address(found["remote"], found["local"] if found["boot"] == _boot() else None, found["pid"])


def shards_in(directory: Path) -> int:
    """How many shards have announced their addresses so far."""
    return len(list(directory.glob("shard-*.address")))


def _boot() -> str:
    """Tells machines apart, and one machine before and after it was started."""
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""


def _read(path: Path) -> Keys:
    try:
        loose = [one for one in (path.parent, path) if stat.S_IMODE(one.stat().st_mode) & 0o077]
        found = json.loads(path.read_bytes())
        keys = Keys(found["public"], found["secret"], found["other"])
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there: make keys for this run first (uneven.server.make_keys)") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} holds no keys: {error!r}") from error
    if loose:
        raise ConfigError(
            f"others can read {loose[0]}: chmod go= {loose[0]}, or better make new keys in a new directory"
        )
    return keys
