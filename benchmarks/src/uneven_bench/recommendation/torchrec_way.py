"""TorchRec on CPUs over gloo: whole tables on ranks (table-wise), DDP for the dense part; its pipeline is optional."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from uneven_bench.recommendation.model import DIM, DLRM, FIELDS, Log, rows

_NAMES = [f"t{place}" for place in range(FIELDS)]


@dataclass
class TorchRecBatch:
    """A batch that its pipeline moves to a device; here, nowhere."""

    ids: Any
    numbers: Tensor
    clicked: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "TorchRecBatch":
        return self

    def record_stream(self, stream: Any) -> None:
        """CPUs have none."""

    def pin_memory(self) -> "TorchRecBatch":
        return self


class _Pooled(nn.Module):
    """DLRM's tables with TorchRec's call."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, ids: Any) -> Tensor:
        found: Tensor = self.tables(ids).values()
        return found


class TorchRecModel(nn.Module):
    """A model that returns a batch's loss (scalar) and its scores (n,), as the pipeline needs them."""

    def __init__(self) -> None:
        super().__init__()
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

        configs = [
            EmbeddingBagConfig(name=name, num_embeddings=many, embedding_dim=DIM, feature_names=[name])
            for name, many in zip(_NAMES, rows(), strict=True)
        ]
        self.model = DLRM(_Pooled(EmbeddingBagCollection(tables=configs, device=torch.device("meta"))))

    def forward(self, batch: TorchRecBatch) -> tuple[Tensor, Tensor]:
        score = self.model(batch.ids, batch.numbers)
        return F.binary_cross_entropy_with_logits(score, batch.clicked), score.detach()


def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model on all ranks, and the optimizer of its dense part; rows step in the backward pass, exactly."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.types import ShardingEnv

    model = TorchRecModel()
    sharders: Any = [
        EmbeddingBagCollectionSharder(
            fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.05, "eps": 1e-8}
        )
    ]
    constraint = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu"),
        constraints=dict.fromkeys(_NAMES, constraint),
    )
    group = dist.group.WORLD
    assert group is not None
    plan = planner.collective_plan(model, sharders, group)
    wrapped = DistributedModelParallel(
        model, env=ShardingEnv.from_process_group(group), device=torch.device("cpu"), plan=plan, sharders=sharders
    )
    dense = [one for name, one in wrapped.named_parameters() if "tables" not in name]
    return wrapped, torch.optim.SGD(dense, lr=0.01)


def batches(batch: int, rank: int, size: int) -> Iterator[TorchRecBatch]:
    """Repeat the log, with ids converted for TorchRec before the measurement."""
    from torchrec import KeyedJaggedTensor

    log = Log()
    ready = []
    for start in range(rank * batch, len(log.ids) - batch + 1, batch * size):
        ids, numbers, clicked = log.__getitems__(list(range(start, start + batch)))
        lengths = torch.ones(FIELDS * batch, dtype=torch.int32)
        keyed = KeyedJaggedTensor.from_lengths_sync(_NAMES, ids.t().reshape(-1), lengths)
        ready.append(TorchRecBatch(keyed, numbers, clicked))
    while True:
        yield from ready


def steps(pipeline: bool, batch: int, rank: int, size: int) -> Iterator[None]:
    """Train, a step at each iteration."""
    model, optimizer = sharded()
    source = batches(batch, rank, size)
    if pipeline:
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.streamable import Pipelineable

        Pipelineable.register(TorchRecBatch)
        pipe: Any = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"), execute_all_batches=True)
        while True:
            pipe.progress(source)
            yield
    for one in source:
        optimizer.zero_grad()
        loss, _ = model(one)
        loss.backward()
        optimizer.step()
        yield
