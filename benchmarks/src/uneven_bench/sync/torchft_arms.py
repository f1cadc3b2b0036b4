"""The arms of ``uneven bench sync`` that is torchft's: its DiLoCo, each worker a replica group of one."""

import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import DataLoader

os.environ.setdefault("RUST_LOG", "error")  # else its servers print every quorum; torchft reads it at its import

from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from uneven.policy.sync.block import DiLoCo as DiLoCoPolicy
from uneven.runtime.messages.peer_messages import own_address
from uneven.runtime.world import discover
from uneven_bench.sync.arm import SyncArm

_TIMEOUT = timedelta(seconds=120)


class TorchFT(SyncArm):
    """torchft with a lighthouse in rank 0. All workers make it at the same time. Its outer optimizer is that of
    our policy of the same name."""

    def __init__(self, model: nn.Module, batches: DataLoader[Any], every: int) -> None:
        super().__init__(model)
        self.every = every
        here = own_address(discover().meeting)
        size = dist.get_world_size()
        self._lighthouse = LighthouseServer(bind="0.0.0.0:0", min_replicas=size) if dist.get_rank() == 0 else None
        told = [""]
        if self._lighthouse is not None:
            told = [f"http://{here}:{urlsplit(self._lighthouse.address()).port}"]
        dist.broadcast_object_list(told, src=0)
        self._store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=_TIMEOUT), load_state_dict=model.load_state_dict, state_dict=model.state_dict,
            min_replica_size=size, use_async_quorum=False, timeout=_TIMEOUT, quorum_timeout=_TIMEOUT, rank=0,
            world_size=1, store_addr=here, store_port=self._store.port, lighthouse_addr=told[0], hostname=here,
            replica_id=f"diloco-{dist.get_rank()}", init_sync=False,
        )  # fmt: skip
        ours = DiLoCoPolicy()
        outer = torch.optim.SGD(model.parameters(), lr=ours.outer_lr, momentum=ours.outer_momentum, nesterov=True)
        self._around: Any = DiLoCo(self._manager, [model], self.optimizer, outer, sync_every=every)
        self._around.__enter__()
        self.batches = iter(batches)

    def close(self) -> None:
        """End torchft's servers, the lighthouse last."""
        self._around.__exit__(None, None, None)
        self._manager.shutdown(wait=False)
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()
