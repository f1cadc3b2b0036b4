"""hivemind-style accumulation: micro-batches until together there are X samples, then one all-reduce.

hivemind's peers report their progress through a distributed hash table. Here every worker sends its count to all others
after each micro-batch, and reads theirs before it begins another; a micro-batch under way still counts.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from uneven.errors import ConfigError
from uneven_bench.peers.gradients import reduce
from uneven_bench.peers.mailbox import Mailbox

SumLoss = Callable[[int, int], torch.Tensor]
"""(first, samples) → the *sum* of the losses of ``samples`` of this rank's own samples, from the first on."""


class AccumulateCarrier:
    """A maker of one gradient after the other. Making and closing one is collective. Raises ConfigError: a micro-batch
    without samples. ``model``: with the same parameters on all ranks; ``grain``: samples of a micro-batch;
    ``timeout_s``: the longest wait for the other ranks. ``own``: samples of this rank in the last iteration;
    ``ready_s``: end of its last micro-batch, by ``time.perf_counter``."""

    def __init__(self, model: nn.Module, *, grain: int, timeout_s: float = 300.0) -> None:
        if grain < 1:
            raise ConfigError(f"accumulate: a micro-batch of {grain} samples: it must have at least one")
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._grain = grain
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._iteration = 0
        self.own = 0
        self.ready_s = 0.0
        self.mailbox = Mailbox(timeout_s=timeout_s)

    def backward(self, total: int, loss: SumLoss) -> int:
        """Run one iteration: ``.grad`` of every parameter becomes the mean gradient over all samples. Returns the
        samples of all ranks, at least ``total``, X."""
        sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        counts = [0] * self._size
        while sum(counts) < total:
            found = torch.autograd.grad(loss(counts[self._rank], self._grain), self._parameters, materialize_grads=True)
            torch._foreach_add_(sums, list(found))
            counts[self._rank] += self._grain
            self.ready_s = time.perf_counter()
            for other in range(self._size):
                if other != self._rank:
                    self.mailbox.send(other, (self._iteration, counts[self._rank]))
            while (letter := self.mailbox.poll()) is not None:
                iteration, count = letter.numbers
                if iteration == self._iteration:  # a letter of the last iteration may come late
                    counts[letter.sender] = count
        self._iteration += 1
        self.own = counts[self._rank]
        return reduce(self._parameters, sums, self.own)

    def close(self) -> None:
        self.mailbox.close()
