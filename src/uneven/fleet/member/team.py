"""Connect the workers of one member: a single one, or several that train one model through :class:`uneven.Session`.

::

    shared stream   ├ global batch 0 ───────┼ global batch 1 ─────── …      the same for any number of workers
    worker 0        │ x_0 samples │         │ x_0 samples    │
    worker 1        │             │ x_1     │                │ x_1         as the balancer splits it
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from uneven.errors import PeerError
from uneven.fleet.ensemble import Member
from uneven.fleet.pure.sections import Section
from uneven.fleet.stream.stream_reader import Reader, Shared
from uneven.run.step.callback import Callback, CallbackContext
from uneven.runtime.tcp_store import tcp_store
from uneven.runtime.world import READY_VARIABLE, RUN_VARIABLE

if TYPE_CHECKING:
    from uneven.run.session import Session

PATIENCE_S = 1800.0  # a wait for another worker; the engine reports a worker's death much earlier


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place among those of its member."""

    rank: int = 0
    size: int = 1
    port: int = 0  # of the rendezvous store; 0 for a single worker
    meeting: str = ""  # key prefix of this rendezvous in the store
    address: str = "127.0.0.1"  # of the machine that runs the store


class Samples(Protocol):
    def __len__(self) -> int: ...
    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]: ...


Counted = tuple[list[torch.Tensor], int]
"""A part of a global batch, a tensor of shape (samples, …) per field, and how many samples count; padding does not."""


class SingleProcess:
    """The only worker of a member."""

    rank, size = 0, 1

    def __init__(self, reader: Reader, batch: int, drop_last: bool = False) -> None:
        self._reader = reader
        self.batch = batch
        self._drop_last = drop_last

    def batches(self, section: Section) -> Iterator[Counted]:
        """Yield this worker's parts of the training set's global batches."""
        for fields in self._reader.batches(section, self.batch):
            if len(fields[0]) == self.batch or not self._drop_last:
                yield fields, len(fields[0])

    def judged(self, section: Section) -> Iterator[list[torch.Tensor]]:
        """Yield this worker's batches of the validation set, a tensor of shape (samples, …) per field."""
        return self._reader.batches(section, self.batch)

    def tried(self, samples: Samples) -> Iterator[list[torch.Tensor]]:
        """Yield this worker's batches of another data set, a tensor of shape (samples, …) per field."""
        for start in range(0, len(samples), self.batch):
            yield samples.__getitems__(range(start, min(start + self.batch, len(samples))))

    def total(self, value: torch.Tensor) -> float:
        """Return the sum of `value`, a scalar tensor, over the workers; the same on all."""
        return float(value)

    def first_says(self, number: int) -> int:
        """Return worker 0's number on all workers."""
        return number

    def gathered(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Return each worker's state on worker 0, and [] on the others."""
        return [state]

    @property
    def shares(self) -> tuple[int, ...]:
        """Return the samples of each worker in a global batch, after the last split."""
        return (self.batch,)

    def close(self) -> None:
        """Leave the other workers."""


class Team:
    """One of several workers of a member. All make the same calls in the same order. See :class:`SingleProcess`.

    `samples` is the size of the training set, or another data set for :meth:`tried`. Raises `PeerError` if another
    worker did not come, or ended.
    """

    def __init__(
        self, reader: Reader, seat: Seat, member: Member, *, batch: int, balance: str, samples: int | Samples
    ) -> None:
        self.rank = seat.rank
        self.size = seat.size
        self.batch = batch
        self._reader = reader
        self._judge_in = member.batch_size
        self._shared = Shared(reader, samples, batch) if isinstance(samples, int) else None
        self._others = _Others()
        self._session = together(seat, balance, self._others)
        self._session.setup(member.model, member.optimizer, find_unused_parameters=member.find_unused_parameters)
        self._loader = self._session.loader(
            self._shared or samples, batch, shuffle=False, drop_last=member.drop_last, collate_fn=as_it_is
        )

    def batches(self, section: Section) -> Iterator[Counted]:
        assert self._shared is not None
        self._shared.begin(section)
        for fields in self._loader:
            yield fields, self._session.shares[self.rank]
        self._shared.end()

    def judged(self, section: Section) -> Iterator[list[torch.Tensor]]:
        return self._reader.batches(section, self._judge_in, part=self.rank, parts=self.size)

    def tried(self, samples: Samples) -> Iterator[list[torch.Tensor]]:
        return iter(self._loader)

    def total(self, value: torch.Tensor) -> float:
        found = value.to("cpu", torch.float64)  # the member's line is gloo's
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
        # States differ in size between workers, so rank 0 needs the lengths before it can receive them.
        line.gather(length, lengths).wait()
        if self.rank:
            line.send(mine, 0).wait()
            return []
        said = [mine, *(torch.empty(int(n), dtype=torch.uint8) for n in lengths[1:])]
        for rank, its in enumerate(said[1:], 1):
            line.receive(its, rank).wait()
        # Only tensors and plain data are read, because unpickling data of the network could run its code.
        return [torch.load(io.BytesIO(one.numpy().tobytes()), weights_only=True) for one in said]

    @property
    def shares(self) -> tuple[int, ...]:
        return self._session.next_shares

    def close(self) -> None:
        apart(self._session)


class _Others(Callback):
    def attach(self, run: CallbackContext) -> None:
        self.line = run.lines.open("member")


def as_it_is(batch: Any) -> Any:
    return batch


def together(seat: Seat, balance: str, *parts: Callback) -> "Session":
    """Return a session of the workers with seats at one rendezvous. Raises `PeerError` if a worker did not come."""
    from uneven.run.session import Session  # imported here, because a single worker does not need it

    for variable in (RUN_VARIABLE, READY_VARIABLE):  # inherited from a launcher of the whole program
        os.environ.pop(variable, None)
    _meet(seat)
    return Session(
        balance=balance,
        sync="bsp",
        timeout_s=PATIENCE_S,
        seed=0,
        overhead_budget=0.005,
        nonfinite="warn",
        callbacks=parts,
    )


def apart(session: "Session") -> None:
    session.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _meet(seat: Seat) -> None:
    limit = timedelta(seconds=PATIENCE_S)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    with _with_others("the rendezvous of the workers"):
        store = tcp_store(seat.address, seat.port, is_master=False, timeout=limit)
        mine = PrefixStore(seat.meeting, store)
        dist.init_process_group(backend, store=mine, rank=seat.rank, world_size=seat.size, timeout=limit)


@contextmanager
def _with_others(what: str) -> Iterator[None]:
    """Turn torch's error about a missing worker into a `PeerError`, which does not blame this member."""
    try:
        yield
    except RuntimeError as error:
        raise PeerError(f"{what} failed: {error}") from error
