"""The workers of one member: one alone, or several that train one model through :class:`uneven.Session`.

::

    shared stream   ├ global batch 0 ───────┼ global batch 1 ─────── …      the same for any number of workers
    worker 0        │ x_0 samples │         │ x_0 samples    │
    worker 1        │             │ x_1     │                │ x_1         as the balancer splits it
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private
from torch.distributed.distributed_c10d import PrefixStore

from uneven.errors import PeerError
from uneven.fleet.ensemble import Member
from uneven.fleet.stream.order import Section
from uneven.fleet.stream.reader import Reader, Shared
from uneven.run.part import Part, Run
from uneven.world import READY_VARIABLE, RUN_VARIABLE

if TYPE_CHECKING:
    from uneven.session import Session

PATIENCE_S = 1800.0
"""How long a worker waits for another one of its member. One that died is heard of at once, from the engine."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place among those of its member.

    Attributes:
        port: of the store where they meet; 0 for one that is alone.
        meeting: what tells this meeting apart from others at that store.
        address: of the machine that the store is on.
    """

    rank: int = 0
    size: int = 1
    port: int = 0
    meeting: str = ""
    address: str = "127.0.0.1"


class Samples(Protocol):
    """A data set whose samples are fetched together."""

    def __len__(self) -> int: ...
    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]: ...


Counted = tuple[list[torch.Tensor], int]
"""A worker's part of a global batch, field by field, and how many of its samples count; padding does not."""


class Alone:
    """The only worker of a member."""

    rank, size = 0, 1

    def __init__(self, reader: Reader, batch: int, drop_last: bool = False) -> None:
        self._reader, self.batch = reader, batch
        self._drop_last = drop_last

    def batches(self, section: Section) -> Iterator[Counted]:
        """The training set in batches."""
        for fields in self._reader.batches(section, self.batch):
            if len(fields[0]) == self.batch or not self._drop_last:
                yield fields, len(fields[0])

    def judged(self, section: Section) -> Iterator[list[torch.Tensor]]:
        """This worker's part of the validation set, in batches: for each field a tensor of shape (samples, …)."""
        return self._reader.batches(section, self.batch)

    def tried(self, samples: Samples) -> Iterator[list[torch.Tensor]]:
        """Batches of another data set: for each field a tensor of shape (samples, …)."""
        for start in range(0, len(samples), self.batch):
            yield samples.__getitems__(range(start, min(start + self.batch, len(samples))))

    def total(self, value: torch.Tensor) -> float:
        """The sum over the workers; ``value`` has one number, shape ()."""
        return float(value)

    def first_says(self, number: int) -> int:
        """What worker 0 says, for all."""
        return number

    def gathered(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """What each worker says, at worker 0; elsewhere nothing."""
        return [state]

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each worker in a global batch, as split last."""
        return (self.batch,)

    def close(self) -> None:
        """Leave the others."""


class Team:
    """One of several workers of a member; all make the same calls in the same order. See :class:`Alone`.

    Args:
        batch: the global batch, samples.
        balance: the balancer, see :class:`uneven.Session`.
        samples: of the training set, or another data set that :meth:`tried` will go through.

    Raises:
        PeerError: another worker did not come, or ended.
    """

    def __init__(
        self, reader: Reader, seat: Seat, member: Member, *, batch: int, balance: str, samples: int | Samples
    ) -> None:
        self.rank = seat.rank
        self.size = seat.size
        self.batch = batch
        self._reader, self._judge_in = reader, member.batch_size
        self._shared = Shared(reader, samples, batch) if isinstance(samples, int) else None
        self._others = _Others()
        self._session = together(seat, balance, self._others)
        self._session.setup(member.model, member.optimizer, find_unused_parameters=member.find_unused_parameters)
        self._loader = self._session.loader(
            self._shared or samples, batch, shuffle=False, drop_last=member.drop_last, collate_fn=as_it_is
        )

    def batches(self, section: Section) -> Iterator[Counted]:
        """This worker's parts of the training set's global batches."""
        assert self._shared is not None
        self._shared.begin(section)
        for fields in self._loader:
            yield fields, self._session.shares[self.rank]
        self._shared.end()

    def judged(self, section: Section) -> Iterator[list[torch.Tensor]]:
        """Every so many-th batch of the validation set: for each field a tensor of shape (samples, …)."""
        return self._reader.batches(section, self._judge_in, part=self.rank, parts=self.size)

    def tried(self, samples: Samples) -> Iterator[list[torch.Tensor]]:
        """This worker's parts of its data set: for each field a tensor of shape (samples, …)."""
        return iter(self._loader)

    def total(self, value: torch.Tensor) -> float:
        """The sum over the workers, the same on all; ``value`` has one number, shape ()."""
        found = value.to("cpu", torch.float64)
        self._others.line.sum(found).wait()
        return float(found)

    def first_says(self, number: int) -> int:
        said = torch.tensor([number])
        self._others.line.broadcast(said, 0).wait()
        return int(said)

    def gathered(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        packed = io.BytesIO()
        torch.save(state, packed)
        mine = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
        length = torch.tensor([len(mine)])
        lengths, line = [torch.zeros_like(length) for _ in range(self.size)], self._others.line
        line.gather(length, lengths).wait()
        if self.rank:
            line.send(mine, 0).wait()
            return []
        said = [mine, *(torch.empty(int(n), dtype=torch.uint8) for n in lengths[1:])]
        for rank, its in enumerate(said[1:], 1):
            line.receive(its, rank).wait()
        # Plain data and tensors, as in a checkpoint: what comes over the network is not unpickled as code.
        return [torch.load(io.BytesIO(one.numpy().tobytes()), weights_only=True) for one in said]

    @property
    def shares(self) -> tuple[int, ...]:
        return self._session.newest_shares

    def close(self) -> None:
        apart(self._session)


class _Others(Part):
    """The line to the other workers of the member."""

    def attach(self, run: Run) -> None:
        self.line = run.lines.open("member")


def as_it_is(batch: Any) -> Any:
    """For a loader of batches."""
    return batch


def together(seat: Seat, balance: str, *parts: Part) -> Session:
    """A session of the workers that have seats at the same meeting.

    Args:
        balance: the balancer, see :class:`uneven.Session`.
        parts: of its run.

    Raises:
        PeerError: one of them did not come.
    """
    from uneven.session import Session  # only those who are several need it

    for variable in (RUN_VARIABLE, READY_VARIABLE):  # of a launcher that started the whole program, not this worker
        os.environ.pop(variable, None)
    _meet(seat)
    return Session(
        balance=balance, sync="bsp", timeout_s=PATIENCE_S, seed=0, budget=0.005, nonfinite="warn", parts=parts
    )


def apart(session: Session) -> None:
    """Its workers part."""
    session.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _meet(seat: Seat) -> None:
    """Join the other workers of the member.

    Raises:
        PeerError: one of them did not come.
    """
    limit = timedelta(seconds=PATIENCE_S)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    with _with_others("the meeting of the workers"):
        store = TCPStore(seat.address, seat.port, is_master=False, timeout=limit)
        mine = PrefixStore(seat.meeting, store)
        dist.init_process_group(backend, store=mine, rank=seat.rank, world_size=seat.size, timeout=limit)


@contextmanager
def _with_others(what: str) -> Iterator[None]:
    """What torch raises when another worker is gone, as ours: it says nothing about this member."""
    try:
        yield
    except RuntimeError as error:
        raise PeerError(f"{what} failed: {error}") from error
