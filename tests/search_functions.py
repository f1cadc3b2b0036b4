"""Training functions that tests search with; they are called in other processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from uneven.search import Trainable, Trial
from uneven.search.pure.space import Params


def trivial(trial: Trial) -> None:
    trial.report(score=trial["x"])


def silent(trial: Trial) -> None:
    """Report nothing for a minute."""
    time.sleep(60.0)


def scaled(trial: Trial, factor: float) -> None:
    trial.report(score=factor * trial["x"])  # type: ignore[operator]


def climbs(trial: Trial) -> None:
    """A real model that really learns, bit for bit the same on each machine; nine steps."""
    torch.manual_seed(trial.seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(trial["rate"]), momentum=0.9)  # type: ignore[arg-type]
    for step in trial.steps(model=model, optimizer=optimizer):
        if step == 9:
            return
        if "pause_s" in trial.params:
            time.sleep(float(trial["pause_s"]))  # type: ignore[arg-type]
        x = torch.randn(16, 4)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        _note(trial, f"{trial.number} {step}")
        trial.report(loss=loss.item())


class Counts(Trainable):
    """The other style: counts its steps."""

    def setup(self, params: Params) -> None:
        self.params, self.count = params, 0

    def step(self) -> Mapping[str, float]:
        self.count += 1
        return {"score": float(self.params["x"]) * self.count}  # type: ignore[arg-type]

    def save(self) -> dict[str, Any]:
        return {"count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def crashes(trial: Trial) -> None:
    """Trial 0 raises once in its third step, trial 1 kills its process in each, trial 2 diverges."""
    for step in trial.steps(count=Counter()):
        if step == 5:
            return
        if trial.number == 0 and step == 2 and not trial.resumed:
            raise ValueError("a bad day")
        if trial.number == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        score = float("nan") if trial.number == 2 and step == 1 else float(step)
        trial.report(score=score)


class Counter:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        return None


def reports_something_else(trial: Trial) -> None:
    trial.report(loss=1.0)


def asks(trial: Trial) -> None:
    momentum = trial.suggest_float("momentum", 0.1, 0.9)
    layers = trial.suggest_int("layers", 1, 3)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    assert trial.suggest_float("momentum", 0.1, 0.9) == momentum
    trial.report(score=momentum + layers + (kind == "a"))


def waits(trial: Trial) -> None:
    """Steps until it is stopped, slowly."""
    for step in trial.steps(count=Counter()):
        time.sleep(0.05)
        trial.report(score=float(step))


def misuses(trial: Trial) -> None:
    match trial["how"]:
        case "text":
            trial.report(score="high")  # type: ignore[arg-type]
        case "twice":
            for _ in trial.steps():
                trial.report(score=1.0)
                trial.report(score=1.0)
        case "part":
            trial.keep(model=3)  # type: ignore[arg-type]


class Numbers:
    """Samples that are their own number, and a target."""

    def __init__(self, count: int, broken: int = -1) -> None:
        self.count, self.broken = count, broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.broken:
            raise ValueError("this one is broken")
        return torch.tensor([float(index)]), index % 2


class Stuck(Numbers):
    """All samples but the first hang."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(600 if index else 0)
        return super().__getitem__(index)


def ninety() -> Numbers:
    return Numbers(90)


def jitter(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return sample[0] + 0.1 * torch.rand(1), sample[1]


def reads(trial: Trial) -> None:
    """What it reports depends on each sample that it has read, on their order, and on its own random numbers."""
    torch.manual_seed(trial.seed)
    weight = nn.Linear(1, 1)
    for epoch, batches in trial.epochs(weight, batch_size=int(trial["batch"])):  # type: ignore[arg-type]
        if epoch == 3:
            return
        seen, digest = [], 0.0
        for x, _ in batches:
            seen += [round(value) for value in (x[:, 0] - 0.05).tolist()]
            digest = 0.9 * digest + float(x.sum()) + float(torch.rand(()))
        assert sorted(seen) == list(range(90)), sorted(seen)
        assert sum(len(y) for _, y in trial.validation(7)) == 20
        trial.report(score=digest)


def loads(trial: Trial) -> None:
    """Reads a DataLoader; its process is killed once, while the two workers of the loader run."""
    total = 0.0
    for x, _ in DataLoader(Numbers(8), batch_size=2, num_workers=2):
        total += float(x.sum())
        if not Path(str(trial["noted_in"])).exists():
            _note(trial, " ".join(str(child.pid) for child in multiprocessing.active_children()))
            os.kill(os.getpid(), signal.SIGKILL)
    trial.report(score=total)


def learns(trial: Trial) -> None:
    """A real model on the search's data, in as many processes as the trial has devices."""
    torch.manual_seed(trial.seed)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch, batches in trial.epochs(model, optimizer, batch_size=20):
        if epoch == 4:
            return
        for x, y in batches:
            if trial.rank == 1 and trial["how"] == "kill" and not Path(str(trial["noted_in"])).exists():
                _note(trial, "killed")
                os.kill(os.getpid(), signal.SIGKILL)
            loss = ((model(x / 90)[:, 0] - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            judged = sum(float(((model(x / 90)[:, 0] - y) ** 2).sum()) for x, y in trial.validation())
        if trial.size > 1 and trial["how"] == "alone":
            raise ValueError("not in company")
        trial.report(loss=judged / 20)


def _note(trial: Trial, text: str) -> None:
    if "noted_in" in trial.params:
        with Path(str(trial["noted_in"])).open("a") as file:
            file.write(f"{text}\n")
