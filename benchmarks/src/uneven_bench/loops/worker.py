"""A worker of ``uneven bench loops``: ``python -m … CASE ROUNDS SECONDS OUT``, figures into OUT.

The text is tiny Shakespeare from ``UNEVEN_DATA``, a speech a sample. The model guesses each character from the eight
before it, so its cost depends only on the number of characters: those of a batch one after the other (packed), or as a
rectangle (padded).
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

import uneven
from uneven.runtime.world import discover
from uneven_bench.harness.data import shakespeare
from uneven_bench.workloads.base import Images, for_ever, whole

PAST, BATCH, WARM = 8, 128, 24
"""Characters that a guess looks at; speeches of a global batch; iterations that do not count."""


class Speeches(Dataset[Tensor]):
    """Speeches as characters: int64."""

    def __init__(self) -> None:
        found = [one for one in shakespeare().split("\n\n") if len(one) > PAST]
        letters = {letter: number for number, letter in enumerate(sorted({*"".join(found)}))}
        self.size = len(letters)
        self.texts = [torch.tensor([letters[letter] for letter in one]) for one in found]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return self.texts[index]


class Guess(nn.Module):
    """A network that predicts a character from the eight before it."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters + 1, 16)
        self.layers = nn.Sequential(nn.Linear(16 * PAST, 256), nn.ReLU(), nn.Linear(256, letters))

    def forward(self, windows: Tensor) -> Tensor:
        return self.layers(self.embed(windows).flatten(-2))


def packed(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return all windows of all texts, (windows, 8), and their next characters, (windows,)."""
    return torch.cat([one.unfold(0, PAST, 1)[:-1] for one in texts]), torch.cat([one[PAST:] for one in texts])


def padded(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return windows and next characters of texts padded to the longest, shapes as :func:`packed`."""
    rows = pad_sequence(texts, batch_first=True)
    wanted = pad_sequence(texts, batch_first=True, padding_value=-100)[:, PAST:]
    return rows.unfold(1, PAST, 1)[:, :-1], wanted


def train(collate: Callable[[list[Tensor]], Any], by_cost: bool, seconds: float) -> dict[str, Any]:
    """Return the throughput of all workers together, after the first iterations."""
    data = Speeches()
    costs = np.array([len(one) - PAST for one in data.texts], dtype=np.float64)
    by: dict[str, Any] = {"cost": costs, "padded": collate is padded} if by_cost else {}
    model = Guess(data.size)
    with uneven.Session(seed=3) as session:
        session.setup(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.05))
        loader = session.loader(data, BATCH, collate_fn=collate, drop_last=True, **by)
        began_s, letters, samples, iterations = 0.0, 0, 0, 0
        for number, (x, y) in enumerate(for_ever(loader)):
            if number == WARM:
                began_s = time.perf_counter()
            kept = int((y != -100).sum())
            with session.loss_mean(kept):
                F.cross_entropy(model(x).flatten(0, -2), y.flatten(), ignore_index=-100).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number >= WARM:
                letters, samples, iterations = letters + kept, samples + BATCH, iterations + 1
                if number % 8 == 0 and session.mean(time.perf_counter() - began_s, weight=1.0) > seconds:
                    break
        took_s = session.mean(time.perf_counter() - began_s, weight=1.0)
    return {"letters": letters, "samples": samples, "iterations": iterations, "took_s": took_s}


def evaluate(how: str, samples: int) -> dict[str, Any]:
    """Return the time of one evaluation by all workers, and this worker's speed in it."""
    torch.manual_seed(0)
    rows = torch.randn(samples, 512)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    busy_s, seen = 0.0, 0

    def count(rows: tuple[Tensor]) -> int:
        nonlocal busy_s, seen
        began_s = time.perf_counter()
        model(batch := rows[0])
        busy_s += time.perf_counter() - began_s
        seen += len(batch)
        return len(batch)

    with uneven.Session(seed=3) as session:
        session.setup(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.0))
        loader = session.loader(TensorDataset(rows[:4096]), 256)
        for _ in range(2):
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        session.evaluate(count, Images(TensorDataset(rows[:2048])), 1024, collate_fn=whole)  # as after an earlier epoch
        busy_s, seen = 0.0, 0
        session.mean(0.0, weight=1.0)  # a barrier: all begin together
        began_s = time.perf_counter()
        if how == "balanced":
            total = session.evaluate(count, Images(TensorDataset(rows)), 1024, collate_fn=whole)
        else:
            mine = rows[session.rank :: session.world_size] if how == "equal" else rows[: 0 if session.rank else None]
            with torch.no_grad():
                for batch in mine.split(64) if len(mine) else ():
                    count((batch,))
            total = round(session.mean(float(seen), weight=1.0) * session.world_size)
        took_s = session.mean(time.perf_counter() - began_s, weight=1.0)
    assert total == samples, f"{total} samples were evaluated, not {samples}"
    return {"samples": samples, "seen": seen, "busy_s": busy_s, "took_s": took_s}


ARMS: dict[str, dict[str, Callable[[float], dict[str, Any]]]] = {
    "packed": {"counts": lambda s: train(packed, False, s), "costs": lambda s: train(packed, True, s)},
    "padded": {"counts": lambda s: train(padded, False, s), "costs": lambda s: train(padded, True, s)},
    "evaluate": {
        "rank 0 alone": lambda s: evaluate("alone", round(8000 * s)),
        "equal parts": lambda s: evaluate("equal", round(8000 * s)),
        "session.evaluate": lambda s: evaluate("balanced", round(8000 * s)),
    },
}


def main(case: str, rounds: int, seconds: float, out: Path) -> None:
    torch.set_num_threads(1)
    found = [{arm: play(seconds) for arm, play in ARMS[case].items()} for _ in range(rounds)]
    (out / f"{discover().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
