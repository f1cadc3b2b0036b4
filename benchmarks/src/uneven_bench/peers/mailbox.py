"""Letters between ranks over ZeroMQ: whole numbers, and sometimes a vector of gradients."""

import json
from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist
import zmq

from uneven.errors import PeerError
from uneven.runtime.messages.peer_messages import own_address
from uneven.runtime.world import discover

_LINGER_MS = 1000  # for letters that a rank has not taken at the end


@dataclass(frozen=True, slots=True)
class Letter:
    """A received letter and its sender; the vector is mostly None."""

    sender: int
    numbers: tuple[int, ...]
    vector: torch.Tensor | None = None


class Mailbox:
    """A mailbox of each rank. Making and closing one is collective: all ranks of the default group, in the same order.
    Letters from one rank keep their order. Only one thread may send, and only one may receive.

    ``dtype``: of the vectors; ``timeout_s``: the longest wait of :meth:`get`.
    """

    def __init__(self, *, dtype: torch.dtype = torch.float32, timeout_s: float = 300.0) -> None:
        self._rank = dist.get_rank()
        self._dtype = dtype
        self._timeout_s = timeout_s
        self._context = zmq.Context()
        for option, value in ((zmq.LINGER, _LINGER_MS), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0)):
            self._context.setsockopt(option, value)
        self._in = self._context.socket(zmq.PULL)
        here = f"tcp://{own_address(discover().meeting)}"
        addresses = [""] * dist.get_world_size()
        dist.all_gather_object(addresses, f"{here}:{self._in.bind_to_random_port(here)}")
        self._out = [self._context.socket(zmq.PUSH) for _ in addresses]
        for out, address in zip(self._out, addresses, strict=True):
            out.connect(address)
        self._letters: deque[Letter] = deque()
        self._received = [0] * len(addresses)

    def send(self, to: int, numbers: tuple[int, ...], vector: torch.Tensor | None = None) -> None:
        """Send numbers and perhaps a vector, flat, in the background."""
        vectors = [] if vector is None else [vector.numpy().data]
        self._out[to].send_multipart([json.dumps([self._rank, *numbers]).encode(), *vectors])

    def get(self) -> Letter:
        """Wait for the next letter. Raises PeerError: none came in time."""
        if not self._letters:
            self._take(int(1e3 * self._timeout_s))
        if not self._letters:
            raise PeerError(f"rank {self._rank}: no letter from anybody within {self._timeout_s:g} s")
        return self._letters.popleft()

    def poll(self) -> Letter | None:
        """Return the next letter if one has come."""
        self._take(0)
        return self._letters.popleft() if self._letters else None

    @property
    def received(self) -> list[int]:
        """The letters from each rank, opened or not."""
        self._take(0)
        return self._received

    def close(self) -> None:
        dist.barrier()  # no rank waits for a letter any more
        self._context.destroy()

    def _take(self, within_ms: int) -> None:
        while self._in.poll(within_ms):
            head, *vectors = self._in.recv_multipart()
            sender, *numbers = json.loads(head)
            vector = torch.frombuffer(bytearray(vectors[0]), dtype=self._dtype) if vectors else None
            self._letters.append(Letter(sender, tuple(numbers), vector))
            self._received[sender] += 1
            within_ms = 0
