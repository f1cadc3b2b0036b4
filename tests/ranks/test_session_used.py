"""What a saved state counts as used: the samples whose gradients are in what is saved with it, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import Numbered, Stream, X, net, sgd

import uneven

EPOCHS, STEPS = 3, 15  # of five iterations each

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Job:
    """A session with all that belongs to a loop; what its optimizer steps have taken in is in the books."""

    def __init__(self, state: dict[str, Any] | None = None, *, sync: str = "bsp", balance: str = "even",
                 optimizers: bool = True, dataset: Any = None, batch_size: int = X, **loader: Any) -> None:  # fmt: skip
        self.session = uneven.Session(sync=sync, balance=balance)
        self.model = net()
        self.optimizer = sgd(self.model)
        self.session.setup(self.model, *([self.optimizer] if optimizers else []))
        self.loader = self.session.loader(dataset or Numbered(), batch_size, **loader)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.session.load_state_dict(state["session"])
        self.used: list[int] = []
        self.steps = 0

    def backward(self, batch: Batch) -> None:
        x, y, _ = batch
        F.cross_entropy(self.model(x), y).backward()

    def step(self, *batches: Batch) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        for *_, index in batches:
            self.used += index.tolist()

    def saved(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer}
        state = {name: {key: value.clone() if isinstance(value, torch.Tensor) else value
                        for key, value in part.state_dict().items()} for name, part in parts.items()}  # fmt: skip
        return {**state, "session": self.session.state_dict()}


def together(used: list[int]) -> list[int]:
    table: list[Any] = [used]
    if dist.is_initialized():
        table = [None] * dist.get_world_size()
        dist.all_gather_object(table, used)
    return sorted(index for row in table for index in row)


# ---------------------------------------------------------------- after the last step of an epoch
def steps_of(job: Job, until: int | None = None) -> list[int]:
    """Steps by epoch of a script that goes on where it was; it saves and ends after so many steps, inside the loop."""
    by_epoch = []
    for _ in range(job.loader.epoch, EPOCHS):
        by_epoch.append(0)
        for batch in job.loader:
            job.backward(batch)
            job.step(batch)
            by_epoch[-1] += 1
            if job.steps == until:
                return by_epoch
    return by_epoch


KINDS = {
    "indexed": {},
    "readers": {"num_workers": 1},
    "stream": {"dataset": Stream()},
    "drop-last": {"drop_last": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_saved_after_the_last_step_of_an_epoch_lacks_no_step_and_adds_none(kind: str) -> None:
    per_epoch = 4 if kind == "drop-last" else 5
    for until in (per_epoch, per_epoch * EPOCHS):
        first = Job(**KINDS[kind])
        steps_of(first, until)
        state = first.saved()
        first.session.close()
        second = Job(state, **KINDS[kind])
        # The pass in which the state was saved has no step left, but what the script does after it is still to come.
        assert steps_of(second) == [0] + [per_epoch] * (EPOCHS - until // per_epoch)
        assert second.loader.epoch == EPOCHS
        second.session.close()
