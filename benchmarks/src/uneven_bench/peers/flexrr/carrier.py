"""FlexRR: real micro-batches, real messages, the gradient of BSP.

Each rank sums gradients of its own pieces and of those that it took over; an all-reduce adds the sums, and the number
of samples done, that of the whole batch, divides them. A helper reads its peers' samples: all draw from one common
order.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from uneven.errors import TrainingError
from uneven_bench.peers.flexrr.messages import Action, Compute, Drop, FlexRRMessage, Keep, Send, Through, pieces
from uneven_bench.peers.flexrr.rule import FlexRR
from uneven_bench.peers.gradients import reduce
from uneven_bench.peers.mailbox import Letter, Mailbox

SumLoss = Callable[[int, int, int], torch.Tensor]
"""(owner, first, samples) → the *sum* of the losses of ``samples`` samples of the owner's share, from the first on."""


@dataclass(slots=True)
class RankTally:
    """The work of one rank, over all iterations."""

    own: int = 0  # pieces of its own share
    helped: int = 0  # pieces of others that counted
    dropped: int = 0  # pieces of others that did not
    messages: int = 0  # that it sent


@dataclass(slots=True)
class _Part:
    """A sum of gradients that may not count in the end."""

    gradients: list[torch.Tensor]
    samples: int = 0
    pieces: int = 0


@dataclass(slots=True)
class _Iteration:
    sums: _Part
    unsure: dict[tuple[int, int], _Part] = field(default_factory=dict)  # owner and number of the offer


class FlexRRCarrier:
    """A maker of the gradients of one global batch after the other. Making and closing one is collective. ``model``:
    with the same parameters on all ranks; buffers stay each rank's own; ``grain``: samples of a micro-batch;
    ``timeout_s``: how long a rank waits for a message. ``tally``: the work of this rank; ``ready_s``:
    ``time.perf_counter`` after its last computing; waiting and the exchange follow."""

    def __init__(self, model: nn.Module, *, grain: int, timeout_s: float = 300.0) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._grain = grain
        self._iteration = 0
        self.tally = RankTally()
        self.ready_s = 0.0
        self.mailbox = Mailbox(timeout_s=timeout_s)

    def backward(self, shares: Sequence[int], loss: SumLoss) -> int:
        """Run one iteration: ``.grad`` of every parameter becomes the mean gradient over the whole batch. Returns the
        samples that this rank did. ``shares``: samples of each rank, the same on all ranks; ``loss``: of this rank's
        model, over samples of any rank. Raises TrainingError: the samples done are not those of the batch; a fault of
        the rules. PeerError: a rank did not take part."""
        cut = [pieces(share, self._grain) for share in shares]
        worker = FlexRR(self._rank, self._size, len(cut[self._rank]), iteration=self._iteration)
        state = _Iteration(self._nothing())
        to_do = self._act(worker.begin(), state)
        while not isinstance(to_do, Through):
            if to_do is None:
                to_do = self._hear(worker, self.mailbox.get(), state)
                continue
            self._compute(to_do, cut[to_do.owner], loss, state)
            while (letter := self.mailbox.poll()) is not None:
                self._hear(worker, letter, state)
            to_do = self._act(worker.computed(), state)
        self._iteration += 1
        self._reduce(state, sum(shares))
        return state.sums.samples

    def close(self) -> None:
        self.mailbox.close()

    def _hear(self, worker: FlexRR, letter: Letter, state: _Iteration) -> Compute | Through | None:
        return self._act(worker.heard(letter.sender, FlexRRMessage.of(letter.numbers)), state)

    def _act(self, actions: list[Action], state: _Iteration) -> Compute | Through | None:
        """Do all actions but computing, and return the next piece to compute, or that the worker is through."""
        next_one: Compute | Through | None = None
        for action in actions:
            match action:
                case Send(to, message):
                    self.tally.messages += 1
                    self.mailbox.send(to, message.numbers())
                case Keep(owner, number):
                    self._keep(state, (owner, number))
                case Drop(owner, number):
                    part = state.unsure.pop((owner, number), None)
                    self.tally.dropped += part.pieces if part else 0
                case Compute() | Through():
                    next_one = action
        return next_one

    def _compute(self, what: Compute, cut: tuple[int, ...], loss: SumLoss, state: _Iteration) -> None:
        samples = cut[what.piece]
        total = loss(what.owner, what.piece * self._grain, samples)
        found = torch.autograd.grad(total, self._parameters, materialize_grads=True)
        part = state.sums
        if what.number:
            part = state.unsure.setdefault((what.owner, what.number), self._nothing())
        else:
            self.tally.own += 1
        torch._foreach_add_(part.gradients, list(found))
        part.samples += samples
        part.pieces += 1
        self.ready_s = time.perf_counter()

    def _nothing(self) -> _Part:
        return _Part([torch.zeros_like(parameter) for parameter in self._parameters])

    def _keep(self, state: _Iteration, which: tuple[int, int]) -> None:
        part = state.unsure.pop(which, None)
        if part is not None:
            torch._foreach_add_(state.sums.gradients, part.gradients)
            state.sums.samples += part.samples
            self.tally.helped += part.pieces

    def _reduce(self, state: _Iteration, total: int) -> None:
        for which in list(state.unsure):
            self._keep(state, which)
        done = reduce(self._parameters, state.sums.gradients, state.sums.samples)
        if done != total:
            raise TrainingError(f"flexrr: {done} samples were done, and the batch has {total}")
