"""The keys of a run and the addresses of its shards, in a directory that only its owner can enter.

``server.key`` has the shards' key pair and the workers' public key; ``client.key`` has the workers' key pair and the
shards' public key. CurveZMQ encrypts and authenticates with them. Workers on a shard's own machine use a socket in the
directory instead: file permissions protect it, and it needs no encryption.
"""

import json
import os
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from uneven.errors import ConfigError
from uneven.runtime.system import WINDOWS

SERVER = "server"  # the folder of a run directory for keys and addresses

SERVER_KEY = "server.key"
CLIENT_KEY = "client.key"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LONGEST_PATH = 107  # the longest path of a Unix socket on Linux, in bytes


class Address(NamedTuple):
    """The address of a shard."""

    remote: str  # for all machines, encrypted
    local: str | None  # for processes on the same machine, in the directory; None on other machines
    pid: int = 0  # of its process, which changes with each start


@dataclass(frozen=True, slots=True)
class Keys:
    """One side's key pair and the other side's public key, in Z85."""

    public: str
    secret: str
    other: str

    def join(self, socket: Any) -> None:
        """Configure ``socket`` as a worker's, before it connects."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_serverkey = self.other.encode()

    def serve(self, socket: Any, domain: bytes) -> None:
        """Configure ``socket`` as a shard's, before it binds."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_server, socket.zap_domain = True, domain


def make_keys(directory: Path) -> None:
    """Create the directory with new keys for one run. Raises ConfigError if the directory has keys already."""
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
            raise ConfigError(f"{directory / name} exists: use a new directory for each run") from None
        with os.fdopen(handle, "w") as file:
            file.write(text)


def server_keys(directory: Path) -> Keys:
    return _read(directory / SERVER_KEY)


def client_keys(directory: Path) -> Keys:
    """Return a worker's keys. Raises ConfigError if there are none, they are damaged, or others may read them."""
    return _read(directory / CLIENT_KEY)


def local_target(directory: Path, shard: int) -> str | None:
    """Return the local socket address of a shard; None if this machine cannot have one."""
    path = str(directory.resolve() / f"shard-{shard}.socket")
    return f"ipc://{path}" if _BOOT.exists() and len(path.encode()) <= _LONGEST_PATH else None


def publish(directory: Path, shard: int, remote: str, local: str | None = None) -> None:
    """Write the address of a shard, atomically."""
    path = directory / f"shard-{shard}.address"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"remote": remote, "local": local, "boot": boot(), "pid": os.getpid()}), encoding="utf-8")
    new.replace(path)


def address(directory: Path, shard: int) -> Address | None:
    """Return the present or last address of a shard; None before its first start."""
    try:
        found = json.loads((directory / f"shard-{shard}.address").read_bytes())
    except FileNotFoundError:
        return None
    return Address(found["remote"], found["local"] if found["boot"] == boot() else None, found["pid"])


def shards_in(directory: Path) -> int:
    return len(list(directory.glob("shard-*.address")))


@cache
def boot() -> str:
    """Return an identifier of this machine since its last boot."""
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""


def _read(path: Path) -> Keys:
    try:
        # Windows has no such modes; there, a folder of temporary files is its user's own.
        private = (path.parent, path) if not WINDOWS else ()
        loose = [one for one in private if stat.S_IMODE(one.stat().st_mode) & 0o077]
        found = json.loads(path.read_bytes())
        keys = Keys(found["public"], found["secret"], found["other"])
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist: make keys for this run first (uneven.runtime.parameter_server.make_keys)"
        ) from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} has no valid keys ({error!r}): make keys in a new directory") from error
    if loose:
        raise ConfigError(
            f"others can read {loose[0]}: run chmod go= {loose[0]}, or better make new keys in a new directory"
        )
    return keys
