"""Redundant execution with backup workers: a small parameter server that takes the first gradients.

An all-reduce needs all ranks, so rank 0 hosts a server in a thread: it holds the parameters and the optimizer, makes an
update from the first n − b gradients of a version, and sends those ranks the newest parameters. A late gradient is
dropped, and its rank receives the newest parameters too.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from uneven.errors import PeerError
from uneven_bench.peers.backup.quorum import GradientQuorum, samples_each
from uneven_bench.peers.gradients import flat, parts
from uneven_bench.peers.mailbox import Mailbox

SERVER = 0  # the rank that hosts the server, and is a worker like any other
_PUSH, _END = 0, 1

MakeOptimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
MeanLoss = Callable[[int], torch.Tensor]
"""version → the *mean* loss over this rank's samples of that version; all ranks take equally many."""


class _QuorumServer:
    """A thread that answers pushes until its end."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        make_optimizer: MakeOptimizer,
        quorum: GradientQuorum,
        inbox: Mailbox,
        outbox: Mailbox,
    ) -> None:
        self._parameters = [parameter.detach().clone() for parameter in parameters]
        self._optimizer = make_optimizer(self._parameters)
        self._quorum = quorum
        self._inbox = inbox
        self._outbox = outbox
        self._sum = torch.zeros_like(flat(self._parameters))
        self.updates: list[tuple[int, ...]] = []
        self.failure: PeerError | None = None
        self.thread = threading.Thread(target=self._serve, name="uneven-backup-server", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            while True:
                letter = self._inbox.get()
                kind, version = letter.numbers
                if kind == _END:
                    return
                verdict = self._quorum.arrive(letter.sender, version)
                if not verdict.counts:
                    self._answer((letter.sender,))
                    continue
                if letter.vector is not None:
                    self._sum += letter.vector
                if verdict.complete:
                    self._update(verdict.complete)
        except PeerError as error:
            self.failure = error

    def _update(self, ranks: tuple[int, ...]) -> None:
        self._sum /= len(ranks)
        for parameter, gradient in parts(self._sum, self._parameters):
            parameter.grad = gradient
        self._optimizer.step()
        self._sum.zero_()
        self.updates.append(ranks)
        self._answer(ranks)

    def _answer(self, ranks: tuple[int, ...]) -> None:
        newest = flat(self._parameters)
        for rank in ranks:
            self._outbox.send(rank, (self._quorum.version,), newest)


class BackupCarrier:
    """A training with n − b gradients a version. Making and closing one is collective. Raises ConfigError: no gradient
    would count.

    Args:
        model: this rank's; rank 0's parameters are the first version.
        make_optimizer: makes the server's optimizer for its copy of the parameters.
        spares: b.
        timeout_s: the longest wait of a rank for an answer, and of the server for a gradient.

    Attributes:
        version: of this rank's parameters.
        exposed_s: of each sent gradient, seconds until the newer parameters arrived.
    """

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, *, spares: int = 1, timeout_s: float = 300.0
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        size = dist.get_world_size()
        quorum = GradientQuorum(size, spares)
        self._spares = spares
        self._size = size
        first = flat(self._parameters)
        dist.broadcast(first, src=SERVER)
        self._load(first)
        self._to_server, self._to_workers = (Mailbox(dtype=first.dtype, timeout_s=timeout_s) for _ in range(2))
        self._quorum = quorum
        self._server: _QuorumServer | None = None
        if dist.get_rank() == SERVER:
            self._server = _QuorumServer(self._parameters, make_optimizer, quorum, self._to_server, self._to_workers)
        self.version = 0
        self.exposed_s: list[float] = []

    def samples_each(self, total: int) -> int:
        """Return X / (n − b), each rank's samples of each version."""
        return samples_each(total, self._size, self._spares)

    def train(self, until: int, loss: MeanLoss) -> int:
        """Train until the parameters have version ``until`` or a later one, and return the number of sent gradients.
        ``loss`` gives the loss over this rank's samples of a version. Raises PeerError: the server did not answer."""
        sent = 0
        while self.version < until:
            found = torch.autograd.grad(loss(self.version), self._parameters, materialize_grads=True)
            ready_s = time.perf_counter()
            self._to_server.send(SERVER, (_PUSH, self.version), flat(found))
            letter = self._to_workers.get()
            (self.version,) = letter.numbers
            if letter.vector is not None:
                self._load(letter.vector)
            self.exposed_s.append(time.perf_counter() - ready_s)
            sent += 1
        return sent

    @property
    def dropped(self) -> tuple[int, ...]:
        """The late gradients of each rank, on the server's rank; zeros elsewhere."""
        return tuple(self._quorum.dropped)

    @property
    def updates(self) -> tuple[tuple[int, ...], ...]:
        """The ranks in each update, on the server's rank; empty elsewhere."""
        return tuple(self._server.updates) if self._server else ()

    def close(self) -> None:
        """End the server. Raises PeerError: the server had failed before."""
        dist.barrier()
        if self._server is not None:
            self._to_server.send(SERVER, (_END, 0))
            self._server.thread.join()
        self._to_server.close()
        self._to_workers.close()
        if self._server is not None and self._server.failure is not None:
            raise self._server.failure

    @torch.no_grad()
    def _load(self, vector: torch.Tensor) -> None:
        for parameter, newest in parts(vector, self._parameters):
            parameter.copy_(newest)
