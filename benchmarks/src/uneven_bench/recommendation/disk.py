"""A table on disk with a part of its rows in memory, compared with the same table in memory."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F

from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven_bench.harness.figures import Spread
from uneven_bench.harness.show import Told
from uneven_bench.recommendation.faults import table_servers
from uneven_bench.recommendation.model import DIM, DLRM, FIELDS, NUMBERS

BATCH = 128
_PRIME = 982_451_653  # scatters frequent ids over the file, as hashed ids are


@dataclass(slots=True)
class _TableTrainer:
    """A trainer with its own server, and the ids of its next batch under way."""

    model: DLRM
    tables: EmbeddingBagCollection
    server: psutil.Process
    batches: Iterator[torch.Tensor]
    optimizer: torch.optim.Optimizer
    next: torch.Tensor | None = None
    examples: int = 0
    server_s: float = 0.0  # processor time of the server for them

    def train(self, seconds: float) -> float:
        """Return examples a second."""
        began_s, many, before_s = time.perf_counter(), 0, sum(self.server.cpu_times()[:2])
        while many == 0 or time.perf_counter() < began_s + seconds:
            ids, self.next = self.next if self.next is not None else next(self.batches), next(self.batches)
            self.tables.door.ahead(self.next, learning=True)
            score = self.model(ids, torch.full((BATCH, NUMBERS), 0.1))
            F.binary_cross_entropy_with_logits(score, (ids[:, 0] % 2).float()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            many += BATCH
        took_s = time.perf_counter() - began_s
        self.examples, self.server_s = self.examples + many, self.server_s + sum(self.server.cpu_times()[:2]) - before_s
        return many / took_s


def zipf(rows: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of ids by Zipf's law with exponent 1: the logarithm of the rank is uniform."""
    draw = np.random.default_rng(seed)
    while True:
        ranks = (float(rows) ** draw.random((BATCH, FIELDS))).astype(np.int64) - 1
        yield torch.from_numpy(ranks * _PRIME % rows)


def out_of_memory_rows(
    rows: int, memory: int, warm_s: float, window_s: float, rounds: int, told: Told, path: str | None = None
) -> dict[str, Any]:
    """Train DLRM with one table in memory and on disk, in turns, one trainer and one server each. Result:
    ``out_of_memory_rows``: ``rows``, ``memory_bytes``, ``examples_per_s`` (of each), ``vs_memory`` (on disk ÷ in
    memory, median of the rounds), ``by_round``, ``server_us_per_example`` (processor time), ``reads_per_example`` and
    ``writes_per_example`` (rows, of the disk),
    ``server_bytes`` (resident, of each), and of a save without other work ``save_s`` and ``saved_bytes`` (on disk)."""
    torch.set_num_threads(1)
    features = tuple(f"f{place}" for place in range(FIELDS))
    plain = Table(rows, DIM, "t", features)
    kinds = {"in memory": plain, "on disk": replace(plain, memory=memory, path=path)}
    with ExitStack() as stack:
        found: dict[str, _TableTrainer] = {}
        for name, table in kinds.items():
            told(f"begin {name}", 0.0)
            server = psutil.Process(stack.enter_context(table_servers(1)).pids()[0])
            tables = EmbeddingBagCollection([table], optimizer=RowwiseAdagrad(lr=0.05), in_state_dict=False)
            stack.callback(tables.close)
            torch.manual_seed(0)
            model = DLRM(tables)
            dense = [*model.bottom.parameters(), *model.top.parameters()]
            optimizer = torch.optim.SGD(dense, lr=0.01)
            found[name] = _TableTrainer(model, tables, server, zipf(rows, 0), optimizer)
            tables.flush()
        for name, one in found.items():
            told(f"warm {name}", 0.1)
            one.train(warm_s)
        disk = found["on disk"]
        rates: dict[str, list[float]] = {name: [] for name in found}
        before = disk.tables.stats().counts
        for one in found.values():
            one.examples, one.server_s = 0, 0.0
        for number in range(rounds):
            for name in (list(found), list(found)[::-1])[number % 2]:
                told(f"train {name}, round {number + 1} of {rounds}", (number + 1) / (rounds + 1))
                rates[name].append(found[name].train(window_s))
        counts = disk.tables.stats().counts
        resident = {name: one.server.memory_info().rss for name, one in found.items()}
        with tempfile.TemporaryDirectory(prefix="uneven-tables-saved-", dir=path) as folder:
            told("save", 1.0)
            began_s = time.perf_counter()
            disk.tables.save_checkpoint(folder)
            save_s = time.perf_counter() - began_s
            saved = sum(512 * file.stat().st_blocks for file in Path(folder).iterdir())
    return {
        "out_of_memory_rows": {
            "rows": rows,
            "memory_bytes": memory,
            "examples_per_s": {name: statistics.median(one) for name, one in rates.items()},
            "vs_memory": Spread.ratio(rates["on disk"], rates["in memory"]).median,
            "by_round": rates,
            "server_us_per_example": {name: 1e6 * one.server_s / one.examples for name, one in found.items()},
            "reads_per_example": (counts["read"] - before["read"]) / disk.examples,
            "writes_per_example": (counts["written"] - before["written"]) / disk.examples,
            "server_bytes": resident,
            "save_s": save_s,
            "saved_bytes": saved,
        }
    }
