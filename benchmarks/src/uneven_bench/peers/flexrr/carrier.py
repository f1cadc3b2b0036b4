"""FlexRR over gloo: real micro-batches, real messages, the gradient of BSP.

Each rank computes sums of gradients, of its own pieces and of those that it took over; the sums are added over all
ranks and divided by the samples really done, which are those of the whole batch. A helper reads its peers' samples: all
draw from one order that everybody knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from uneven.errors import TrainingError
from uneven_bench.peers.flexrr.messages import (
    Action,
    Compute,
    Drop,
    FlexRRMessage,
    Keep,
    Send,
    Through,
    pieces,
)
from uneven_bench.peers.flexrr.rule import FlexRR
from uneven_bench.peers.mailbox import Letter, Mailbox

SumLoss = Callable[[int, int, int], torch.Tensor]
"""(owner, first, samples) → the *sum* of the losses of so many samples of the owner's share, from the first on."""


@dataclass(slots=True)
class RankTally:
    """What one rank did, over all iterations.

    Attributes:
        own: pieces of its own share.
        helped: pieces of others that counted.
        dropped: pieces of others that did not.
        messages: that it sent.
    """

    own: int = 0
    helped: int = 0
    dropped: int = 0
    messages: int = 0


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
    """Makes the gradients of one global batch after the other. Making and closing one is collective.

    Args:
        model: with the same parameters on all ranks; buffers stay each rank's own.
        grain: samples of a micro-batch.
        timeout_s: how long a rank waits for a message.

    Attributes:
        tally: what this rank did.
        ready_s: ``time.perf_counter`` when it had last computed something; what follows is waiting and the exchange.
    """

    def __init__(self, model: nn.Module, *, grain: int, timeout_s: float = 300.0) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._grain = grain
        self._iteration = 0
        self.tally = RankTally()
        self.ready_s = 0.0
        self.mailbox = Mailbox(numbers=5, timeout_s=timeout_s)

    def backward(self, shares: Sequence[int], loss: SumLoss) -> int:
        """One iteration: afterwards ``.grad`` of every parameter holds the mean gradient over the whole batch.

        Args:
            shares: samples of each rank, the same on all ranks.
            loss: of this rank's model, over samples of any rank.

        Returns:
            Samples that this rank did, of its own and of others.

        Raises:
            TrainingError: the samples that were done are not those of the batch; a fault of the rules.
            PeerError: somebody did not take part.
        """
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
        self.mailbox.flush()
        self._iteration += 1
        self._reduce(state, sum(shares))
        return state.sums.samples

    def close(self) -> None:
        """End the thread that listens."""
        self.mailbox.close()

    def _hear(self, worker: FlexRR, letter: Letter, state: _Iteration) -> Compute | Through | None:
        return self._act(worker.heard(letter.sender, FlexRRMessage.of(letter.numbers)), state)

    def _act(self, actions: list[Action], state: _Iteration) -> Compute | Through | None:
        """Do all but computing; what is to be computed, or that the worker is through."""
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
        found = torch.autograd.grad(
            loss(what.owner, what.piece * self._grain, samples), self._parameters, materialize_grads=True
        )
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
        flat = torch.cat(
            [*(gradient.reshape(-1) for gradient in state.sums.gradients), state.sums.gradients[0].new_zeros(1)]
        )
        flat[-1] = float(state.sums.samples)
        dist.all_reduce(flat)
        done = round(float(flat[-1]))
        if done != total:
            raise TrainingError(f"flexrr: {done} samples were done, and the batch has {total}")
        at = 0
        for parameter in self._parameters:
            parameter.grad = (flat[at : at + parameter.numel()] / total).view_as(parameter)
            at += parameter.numel()
