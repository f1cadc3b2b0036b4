"""Words of one layout say what those of two layouts said, in both placements."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from piggyback_before import Piggyback
from slots_before import Slots

from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.control_words import BehindBucket, ControlWords

LENGTH = 3


def acts(size: int, steps: int, seed: int) -> list[list[tuple[str, list[float]]]]:
    draw = random.Random(seed)
    found = []
    for _ in range(steps):
        together = draw.random() < 0.3
        own = [[draw.uniform(-1e9, 1e9) * 10 ** draw.randint(-9, 9) for _ in range(LENGTH)] for _ in range(size)]
        found.append([("carry" if together else draw.choice(["call", "", "", "empty"]), row) for row in own])
    return found


def outcome(heard: Any) -> Any:
    return None if heard is None else (heard.called, heard.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 2, 3, 65])
@pytest.mark.parametrize("late", [None, 0])
def test_behind_a_bucket(dtype: torch.dtype, size: int, late: int | None) -> None:
    old = [Piggyback(rank, size, LENGTH) for rank in range(size)]
    new = [ControlWords(rank, size, LENGTH) for rank in range(size)]
    behind = [BehindBucket(one) for one in new]
    generator = torch.Generator().manual_seed(3)
    steps = 40 if size < 9 else 6
    shapes = [[7, 5, 9]] * (steps // 2) + [[4, 6]] * (steps - steps // 2)
    kept: dict[tuple[str, int, int, int], torch.Tensor] = {}
    for at, (step, lengths) in enumerate(zip(acts(size, steps, size), shapes, strict=True)):
        values = [[torch.randn(n, generator=generator).to(dtype) for n in lengths] for _ in range(size)]
        said = []
        for kind, words in (("old", old), ("new", new)):
            pending = []
            for rank, (act, row) in enumerate(step):
                if act == "carry":
                    pending.append(words[rank].carry(row))
                elif act:
                    words[rank].call(row if act == "call" else [])
            buckets = [
                [kept.setdefault((kind, at // (steps // 2), rank, n), torch.zeros(len(one), dtype=dtype)).copy_(one)
                 for n, one in enumerate(values[rank])]
                for rank in range(size)
            ]  # fmt: skip
            epochs = [2, 7] if late is None else [2, 6]
            sent = [
                [
                    old[rank].attach(one, 2, epochs[rank == late]) if kind == "old"
                    else behind[rank].attach(one, RoundPlace("", 2, epochs[rank == late], epochs[rank == late]))
                    for one in buckets[rank]
                ]
                for rank in range(size)
            ]  # fmt: skip
            for n in range(len(lengths)):
                total = torch.stack([sent[rank][n] for rank in range(size)]).sum(0)
                for rank in range(size):
                    sent[rank][n].copy_(total)
            for one in old if kind == "old" else behind:
                one.collect()
            rows = [None if one is None or one.result() is None else one.result().tolist() for one in pending]
            said.append(
                (
                    [outcome(one.take()) if at % 3 else None for one in words],
                    rows,
                    [one.apart for one in words],
                    [[one.tolist() for one in each] for each in buckets],
                    [[one.numel() for one in each] for each in sent],
                )
            )
        assert said[0] == said[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_message_of_its_own(dtype: torch.dtype, size: int) -> None:
    old = [Slots(LENGTH) for _ in range(size)]
    for rank, one in enumerate(old):
        one.renew(rank, size)
    new = [ControlWords(rank, size, LENGTH, torch.float64, announces=True) for rank in range(size)]
    for at, step in enumerate(acts(size, 40, size)):
        said = []
        for words in (old, new):
            pending, sent = [], []
            for rank, (act, row) in enumerate(step):
                if act == "carry":
                    pending.append(words[rank].carry(row))
                elif act:
                    words[rank].call(row if act == "call" else [])
                numbers = torch.full((words[rank].count(dtype),), 9.0, dtype=dtype)
                place, what = 9 - (rank == at % 7), float((rank + at) % 4)
                if words is old:
                    old[rank].fill(numbers, 1, place, what)
                else:
                    new[rank].write(numbers, RoundPlace("", 1, place), what)
                sent.append(numbers)
            total = torch.stack(sent).sum(0)
            for one in words:
                one.read(total.clone())
            rows = [None if one is None else one.result().tolist() for one in pending]
            heard = [outcome(one.take()) if at % 3 else None for one in words]
            said.append(([one.tolist() for one in sent], rows, heard, [(one.apart, one.announced) for one in words]))
        assert said[0] == said[1]
