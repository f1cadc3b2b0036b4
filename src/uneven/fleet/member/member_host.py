"""Train members, one after the other, in a separate process."""

import hashlib
import pickle
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from uneven.errors import ConfigError
from uneven.fleet.ensemble import Member, Metric
from uneven.fleet.member import member_checkpoint
from uneven.fleet.member.team import Samples, Seat, SingleProcess, Team
from uneven.fleet.member.train_epoch import Copies, diverged, nonfinite_in, profile, run_epoch
from uneven.fleet.pure.batch_rule import BatchRule, global_batch, most_workers, rate_factor
from uneven.fleet.pure.converge import Epoch
from uneven.fleet.pure.planning.rates import MOST_BATCHES
from uneven.fleet.pure.sections import Stream
from uneven.fleet.stream.sample_ring import RingHandle
from uneven.fleet.stream.stream_reader import Reader
from uneven.run.model.check import least_samples
from uneven.runtime.jobs.call import telling
from uneven.runtime.jobs.executor import ProcessLine
from uneven.runtime.jobs.heartbeat import Heartbeat
from uneven.runtime.states import random_state, seed_all


@dataclass(frozen=True, slots=True)
class Job:
    """The description of a member that is sent to each of its processes."""

    name: str
    factory: bytes  # pickled
    metric: Metric
    devices: tuple[str, ...]  # torch's names, one per worker, each in the worker's own process
    folder: Path
    epochs: int  # number of trained epochs; if above 0, the checkpoint of that epoch is read
    seed: int
    batch_rule: BatchRule = BatchRule.KEEP
    balance: str = "lb-bsp"  # how batches are split among workers, see `Session`
    places: tuple[int, ...] = ()  # indices of these devices in the `Place`; by default its first ones
    nonfinite: str = "raise"  # "raise" or "warn", see `Options`


def checkpoint_path(folder: Path, epochs: int) -> Path:
    return folder / f"{epochs:05d}.pt"


def host(connection: ProcessLine, handle: RingHandle, stream: Stream) -> None:
    """Serve one member after the other.

    Messages in: ``("load", job, seat)``, ``("epoch", pass)``, ``("profile", job, seat, sample, seconds)``,
    ``("leave",)``. Out: ``("loaded", workers)``, ranks from that number on have no work, ``("epoch", Epoch)``,
    ``("profiled", seconds of each step, batch size, workers, bytes that only this process holds)``, and the messages of
    :class:`Reader` and :class:`Heartbeat`. The last message of a process is ``("failed", text)``, or ``("lost", text)``
    if it misses another worker of its member.
    """
    torch.set_num_threads(1)
    ring = handle.open(connection)
    reader, pulse = Reader(connection, ring), Heartbeat(connection.send)
    trainee: Trainee | None = None
    while True:
        what, *rest = connection.recv()
        # After an error the process ends, because the state that the user's code left behind is unknown.
        with telling(lambda text: connection.send(("failed", text)), lambda text: connection.send(("lost", text))):
            if what != "epoch" and trainee is not None:
                trainee.close()
                reader.forget()
                trainee = None
            if what == "load":
                job, seat = rest
                trainee = Trainee(reader, pulse, job, seat, stream.train)
                connection.send(("loaded", trainee.used))
            elif what == "profile":
                job, seat, sample, limit_s = rest
                trainee = Trainee(reader, pulse, job, seat, partial(Copies, sample))
                steps_s, batch = trainee.profile(limit_s)
                own_bytes = psutil.Process().memory_full_info().uss
                connection.send(("profiled", steps_s, batch, trainee.used, own_bytes))
            elif what == "epoch" and trainee is not None:
                connection.send(("epoch", trainee.epoch(stream, rest[0])))


class Trainee:
    """A member in one of its processes. `samples` is the training set's size, or makes a data set of a given size."""

    def __init__(self, reader: Reader, pulse: Heartbeat, job: Job, seat: Seat, samples: int | partial[Copies]) -> None:
        self._reader = reader
        self._pulse = pulse
        self._job = job
        self._seat = seat
        pulse.begin("its factory")
        self._device = torch.device(job.devices[seat.rank])
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._workers: SingleProcess | Team | None = None
        # The model is made before the decision about `used`, because the smallest batch depends on its layers.
        self._member = _made(job, self._device)
        self._history: list[dict[str, Any]] = []
        rule = job.batch_rule
        batch = self._member.batch_size
        least = least_samples(self._member.model)
        # The number of processes that the member can use; a batch may be too small to be divided among all of them.
        self.used = most_workers(rule, batch, len(job.devices), least)
        self._tried: Copies | None = None
        if seat.rank >= self.used:
            return
        batch = global_batch(rule, batch, self.used)
        # Found here, before any step: a batch larger than the ring would wait forever.
        reader.check(batch)
        if isinstance(samples, int):
            _check_last(self._member, samples, batch, least)
        if seat.rank:  # each worker has its own random numbers; rank 0 has those of a single-process member
            _seed(job, f"worker {seat.rank} after {job.epochs}")
        if job.epochs:
            pulse.begin("reading its checkpoint")
            saved = member_checkpoint.FILES.read(checkpoint_path(job.folder, job.epochs))
            member_checkpoint.restore(saved, job.name, self._member, seat.rank)
            self._history = saved["history"]
        if not isinstance(samples, int):
            self._tried = samples(samples=batch * MOST_BATCHES)
        source: int | Samples = samples if isinstance(samples, int) else self._tried or 0
        pulse.begin("its start")
        if self.used == 1:
            self._workers = SingleProcess(reader, batch, self._member.drop_last)
        else:
            place = replace(seat, size=self.used)
            self._workers = Team(reader, place, self._member, batch=batch, balance=job.balance, samples=source)

    def profile(self, limit_s: float) -> tuple[list[float], int]:
        if self._workers is None or self._tried is None:
            return [], 0
        steps_s = profile(self._member, self._workers, self._tried, self._device, limit_s, self._pulse)
        return steps_s, self._workers.batch

    def epoch(self, stream: Stream, number: int) -> Epoch | None:
        """Train for an epoch and save the result. Returns the epoch in the first worker, None in the others."""
        assert self._workers is not None, "this process has no worker of the member"
        rule, least = self._job.batch_rule, least_samples(self._member.model)
        before = self._history[-1]["devices"] if self._history else 1
        before = most_workers(rule, self._member.batch_size, before, least)
        factor = partial(rate_factor, rule, before, self.used) if rule is BatchRule.LINEAR else None
        epochs = len(self._history) + 1
        self._pulse.begin("step 1 of epoch {}", epochs)
        done = run_epoch(
            self._member,
            self._reader,
            self._workers,
            stream.sections(number),
            self._job.metric,
            self._device,
            factor,
            pulse=self._pulse,
            epoch=epochs,
            strict=self._job.nonfinite == "raise",
        )
        self._pulse.begin("saving epoch {}", epochs)
        began_s = time.perf_counter()
        done = replace(done, devices=len(self._job.devices))
        self._history.append(asdict(done))
        # A collective, so it comes before the return of the ranks above 0.
        states = self._workers.gathered(random_state())
        if self._seat.rank:
            return None
        spoilt = nonfinite_in(self._member.model) if self._job.nonfinite == "raise" else None
        if spoilt is not None:
            raise diverged(f"{spoilt} holds a NaN or an infinity after epoch {epochs}")
        saved = member_checkpoint.capture(self._job.name, self._member, epochs, self._history, states)
        path = checkpoint_path(self._job.folder, epochs)
        member_checkpoint.FILES.write(path, saved, durable=True, verify=epochs == 1)
        return replace(done, checkpoint_s=time.perf_counter() - began_s)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def _check_last(member: Member, samples: int, batch: int, least: int) -> None:
    if samples < batch and member.drop_last:
        raise ConfigError(f"drop_last with batch_size={batch} drops all {samples} samples: use smaller batches")
    if 0 < samples % batch < least and not member.drop_last:
        raise ConfigError(
            f"batches of {batch} leave one of {samples} samples for the last batch, and batch norm needs {least}: "
            "give fleet.Member(…, drop_last=True), or another batch_size"
        )


def _made(job: Job, device: torch.device) -> Member:
    _seed(job, "")
    member = pickle.loads(job.factory)()  # noqa: S301  # it comes from the process that started this one
    if not isinstance(member, Member):
        raise ConfigError(f"member {job.name!r}: its factory returned a {type(member).__name__}, not a fleet.Member")
    member.model.to(device)
    return member


def _seed(job: Job, what: str) -> None:
    seed_all(int.from_bytes(hashlib.sha256(f"{job.seed} {job.name}{what}".encode()).digest()[:4]))
