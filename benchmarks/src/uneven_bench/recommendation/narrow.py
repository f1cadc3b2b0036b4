"""Rows with fewer bits, on the server and in messages: log loss, bytes and processor time of one pass."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven.embedding.kernels import TorchKernels
from uneven.embedding.pure.narrow_rows import row_bytes
from uneven_bench.harness.threads import threads
from uneven_bench.recommendation.clicks import Clicks, clicks
from uneven_bench.recommendation.faults import table_servers
from uneven_bench.recommendation.model import DIM, ClickNet
from uneven_bench.recommendation.quality import BATCH, HELD

WAYS = {
    "float32": ("float32", "float32"),
    "wire bfloat16": ("float32", "bfloat16"),
    "wire float16": ("float32", "float16"),
    "wire int8": ("float32", "int8"),
    "rows float16": ("float16", "float32"),
    "rows int8": ("int8", "float32"),
    "both int8": ("int8", "int8"),
}
"""Type of the rows at rest, and in messages."""
_WARM = 50  # batches in which the server loads its compiled code


@dataclass(frozen=True, slots=True)
class NarrowPass:
    """One pass."""

    log_loss: float
    server_us: float  # processor time of the server a sample
    row_bytes: int  # of all rows, with Adagrad's sums
    answer_bytes: float  # of the looked-up rows of a sample


def narrow(seeds: int, samples: int, told: Callable[[str, float], None]) -> dict[str, Any]:
    """Play each way with each seed, one server and one trainer. Result: ``narrow``: way → ``log_loss`` (of each seed),
    ``vs_float32`` (log loss ÷ that of float32 − 1, by seed), ``server_us`` (median), ``row_bytes``,
    ``answer_bytes``."""
    data = clicks(samples)
    found: dict[str, list[NarrowPass]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        for place, (way, (dtype, wire)) in enumerate(WAYS.items()):
            told(f"{way}, seed {seed}", (seed + place / len(WAYS)) / seeds)
            found[way].append(one_pass(data, seed, dtype, wire))
    plain = [one.log_loss for one in found["float32"]]
    return {
        "narrow": {
            way: {
                "log_loss": [one.log_loss for one in passes],
                "vs_float32": [one.log_loss / base - 1 for one, base in zip(passes, plain, strict=True)],
                "server_us": statistics.median(one.server_us for one in passes),
                "row_bytes": passes[0].row_bytes,
                "answer_bytes": passes[0].answer_bytes,
            }
            for way, passes in found.items()
        }
    }


@threads()
def one_pass(data: Clicks, seed: int, dtype: str, wire: str) -> NarrowPass:
    """Train one trainer with one server on the log once."""
    held = len(data.clicked) // HELD
    order = held + np.random.default_rng(seed).permutation(len(data.clicked) - held)
    bases = np.cumsum([0, *data.rows[:-1]])
    with table_servers(1) as keeper:
        torch.manual_seed(seed)
        net = ClickNet(len(data.rows), data.numbers.shape[1])
        dense = torch.optim.Adagrad(net.parameters(), lr=0.01)
        tables = EmbeddingBagCollection(
            [Table(many, DIM, f"t{place}", dtype=dtype) for place, many in enumerate(data.rows)],
            optimizer=RowwiseAdagrad(lr=0.05),
            seed=seed,
            wire=wire,
        )

        def loss_of(rows: Any) -> tuple[Tensor, Tensor]:
            pooled = tables(torch.from_numpy(data.ids[rows].astype(np.int64) - bases)).values()
            score = net(pooled, torch.from_numpy(data.numbers[rows]))
            return F.binary_cross_entropy_with_logits(score, torch.from_numpy(data.clicked[rows])), pooled

        server, before_s = psutil.Process(keeper.pids()[0]), 0.0
        batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
        warm = min(_WARM, len(batches) // 2)
        for at, rows in enumerate(batches):
            if at == warm:
                before_s = sum(server.cpu_times()[:2])
            loss_of(rows)[0].backward()
            dense.step()
            dense.zero_grad()
        tables.flush()
        took_s = sum(server.cpu_times()[:2]) - before_s
        with torch.no_grad():
            parts = [loss_of(np.arange(at, min(at + 4096, held))) for at in range(0, held, 4096)]
        tables.close()
    counted = BATCH * (len(batches) - warm)
    answer = TorchKernels().narrowed(parts[0][1].numpy().reshape(-1, DIM), wire)
    return NarrowPass(
        float(np.mean([one.item() for one, _ in parts])),
        1e6 * took_s / counted,
        sum(data.rows) * (row_bytes(dtype, DIM) + 4),
        answer.nbytes / len(parts[0][1]),
    )
