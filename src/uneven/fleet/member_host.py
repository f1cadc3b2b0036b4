"""The process in which a member trains: one for each member of the flotilla, used again for the next one."""

from __future__ import annotations

import hashlib
import pickle
import random
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uneven.errors import ConfigError
from uneven.fleet import checkpoint
from uneven.fleet.converge import Epoch
from uneven.fleet.engine_child import telling
from uneven.fleet.ensemble import Member, Metric
from uneven.fleet.feed_reader import Reader
from uneven.fleet.feed_ring import RingHandle
from uneven.fleet.feed_stream import Stream
from uneven.fleet.member_train import profile, run_epoch


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is told about its member.

    Attributes:
        factory: pickled.
        devices: what the member may use; several are CPU slots, and as many threads.
        folder: where its checkpoints lie.
        epochs: that it has been trained for; its checkpoint of that epoch is read, if there is one.
    """

    name: str
    factory: bytes
    metric: Metric
    devices: tuple[str, ...]
    folder: Path
    epochs: int
    seed: int


def checkpoint_path(folder: Path, epochs: int) -> Path:
    """The file of a member after so many epochs."""
    return folder / f"{epochs:05d}.pt"


def host(connection: Connection, handle: RingHandle, stream: Stream) -> None:
    """Serve one member after the other.

    Messages in: ``("load", job)``, ``("epoch", pass)``, ``("profile", job, sample, seconds)``. Out: ``("loaded",)``,
    ``("epoch", Epoch)``, ``("profiled", seconds of each step, batch size)``, what a :class:`Reader` says, and
    ``("failed", text)``, after which it ends, since nobody knows what the user's code has left behind.
    """
    torch.set_num_threads(1)
    ring = handle.open()
    reader = Reader(connection, ring)
    job: Job | None = None
    member: Member | None = None
    history: list[dict[str, Any]] = []
    while True:
        what, *rest = connection.recv()
        with telling(lambda text: connection.send(("failed", text))):
            if what == "load":
                (job,) = rest
                member, history = _load(job)
                reader.check(member.batch_size)
                connection.send(("loaded",))
            elif what == "profile":
                (job, sample, limit_s), member = rest, None
                made, _ = _load(job)
                steps_s = profile(made, sample, torch.device(job.devices[0]), limit_s)
                connection.send(("profiled", steps_s, made.batch_size))
            elif job is not None and member is not None:
                device = torch.device(job.devices[0])
                done = run_epoch(member, reader, stream.sections(rest[0]), job.metric, device)
                connection.send(("epoch", _keep(job, member, history, done)))


def _load(job: Job) -> tuple[Member, list[dict[str, Any]]]:
    torch.set_num_threads(len(job.devices))
    seed = int.from_bytes(hashlib.sha256(f"{job.seed} {job.name}".encode()).digest()[:4])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    member = pickle.loads(job.factory)()  # noqa: S301  # it comes from the process that started this one
    if not isinstance(member, Member):
        raise ConfigError(f"member {job.name!r}: its factory returned a {type(member).__name__}, not a fleet.Member")
    device = torch.device(job.devices[0])
    member.model.to(device)
    if not job.epochs:
        return member, []
    saved = checkpoint.read(checkpoint_path(job.folder, job.epochs))
    checkpoint.restore(saved, job.name, member)
    return member, saved["history"]


def _keep(job: Job, member: Member, history: list[dict[str, Any]], done: Epoch) -> Epoch:
    began_s = time.perf_counter()
    done = replace(done, devices=len(job.devices))
    history.append(asdict(done))
    epochs = len(history)
    saved = checkpoint.capture(job.name, member, epochs, history)
    checkpoint.write(checkpoint_path(job.folder, epochs), saved, verify=epochs == 1)
    return replace(done, checkpoint_s=time.perf_counter() - began_s)
