"""hivemind's arm of ``uneven bench sync`` and ``far-sites``: local steps, and its average of all parameters."""

import logging
from typing import Any

import torch
import torch.distributed as dist
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression
from torch import nn
from torch.utils.data import DataLoader

from uneven.errors import TrainingError
from uneven.runtime.messages.peer_messages import own_address
from uneven.runtime.world import discover
from uneven_bench.sync.arm import SyncArm

_TIMEOUT_S = 120.0


class Hivemind(SyncArm):
    """A peer of one group of all workers. All make it at the same time. hivemind's optimizer begins an average when the
    peers' progress in the hash table demands it, each peer at another step. Here the averager is called after every
    block, for the same steps as the other arms'. Values travel as float16, as in its examples for slow lines."""

    def __init__(self, model: nn.Module, batches: DataLoader[Any], every: int) -> None:
        super().__init__(model)
        logging.getLogger("hivemind").setLevel(logging.ERROR)
        self.every = every
        self._steps = 0
        here = [f"/ip4/{own_address(discover().meeting)}/tcp/0"]
        size = dist.get_world_size()
        told: list[list[str]] = [[]]
        if dist.get_rank() == 0:
            self._table = DHT(host_maddrs=here, start=True)
            told = [[str(one) for one in self._table.get_visible_maddrs()]]
        dist.broadcast_object_list(told, src=0)
        if dist.get_rank():
            self._table = DHT(host_maddrs=here, initial_peers=told[0], start=True)
        self._averager = DecentralizedAverager(
            [one.detach().clone() for one in model.parameters()], self._table, prefix="uneven", target_group_size=size,
            min_group_size=size, allreduce_timeout=_TIMEOUT_S, compression=Float16Compression(), start=True,
        )  # fmt: skip
        dist.barrier()
        self.batches = iter(batches)

    def _step(self) -> int:
        samples = super()._step()
        self._steps += 1
        if self._steps % self.every == 0:
            self._average()
        return samples

    def _average(self) -> None:
        with torch.no_grad(), self._averager.get_tensors() as shared:
            for theirs, own in zip(shared, self.model.parameters(), strict=True):
                theirs.copy_(own)
        if self._averager.step(timeout=_TIMEOUT_S) is None:
            raise TrainingError(f"hivemind came to no average of all within {_TIMEOUT_S:g} s")
        with torch.no_grad(), self._averager.get_tensors() as shared:
            for theirs, own in zip(shared, self.model.parameters(), strict=True):
                own.copy_(theirs)

    def close(self) -> None:
        """End the averager, then the table, which others may still need."""
        dist.barrier()
        self._averager.shutdown()
        self._table.shutdown()
