"""Rows with fewer bits, on the server and in messages: log loss, bytes and processor time of one pass."""

import statistics
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from uneven.embedding.kernels import TorchKernels
from uneven.embedding.pure.narrow_rows import row_bytes
from uneven_bench.harness.show import Told
from uneven_bench.harness.threads import threads
from uneven_bench.recommendation.clicks import Clicks, clicks
from uneven_bench.recommendation.faults import LogTrainer, table_servers
from uneven_bench.recommendation.model import DIM

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


def narrow(seeds: int, samples: int, told: Told) -> dict[str, Any]:
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
    with table_servers(1) as keeper:
        trainer = LogTrainer(data, seed, dtype, wire=wire)
        server, before_s = psutil.Process(keeper.pids()[0]), 0.0
        warm = min(_WARM, len(trainer.batches) // 2)
        for at, rows in enumerate(trainer.batches):
            if at == warm:
                before_s = sum(server.cpu_times()[:2])
            trainer.step(rows)
        trainer.tables.flush()
        took_s = sum(server.cpu_times()[:2]) - before_s
        log_loss, samples = trainer.log_loss(), trainer.batches[0]
        with torch.no_grad():
            pooled = trainer.pooled(samples).numpy()
        trainer.tables.close()
    return NarrowPass(
        log_loss,
        1e6 * took_s / sum(map(len, trainer.batches[warm:])),
        sum(data.rows) * (row_bytes(dtype, DIM) + 4),
        TorchKernels().narrowed(pooled.reshape(-1, DIM), wire).nbytes / len(samples),
    )
