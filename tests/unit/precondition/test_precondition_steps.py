"""What each kind of step exchanges, numbers that follow the step, and refreshes where there is time for them."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from workers import CallbackWorker, train

from uneven import KFAC
from uneven.policy.ownership.agreed_speeds import WorkerRow
from uneven.precondition import preconditioner as seam

X = 12


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(number: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(number)
    return torch.randn(X, 5, generator=make, dtype=torch.float64), torch.randint(0, 3, (X,), generator=make)


def test_numbers_may_follow_the_step() -> None:
    def use(worker: CallbackWorker) -> list[tuple[float, float]]:
        part: Any = worker.part
        found = []
        for number in range(4):
            worker.step(*batch(number), (X,))
            found.append((part.numbers.damping, part.nu))
        return found

    def make() -> KFAC:
        return KFAC(damping=lambda step: 0.1 * 0.5**step, kl_clip=lambda step: 1e-6 if step < 2 else 1e6)

    found = train(1, net, make, use)[0]
    assert [damping for damping, _ in found] == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    assert [nu < 1.0 for _, nu in found] == [True, True, False, False]


@pytest.mark.parametrize(("idle", "steps"), [((2.0, 2.0), [0, 6, 10]), ((2.0, 0.1), [0, 4, 8, 12])])
def test_auto_refreshes_beside_the_training_where_every_worker_has_a_core_to_spare(
    idle: tuple[float, float], steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    each = cycle(idle)  # each of the two workers asks once in a refresh
    monkeypatch.setattr(seam, "idle_cores", lambda: next(each))

    def use(worker: CallbackWorker) -> list[int]:
        part: Any = worker.part
        changed = []
        for number in range(13):
            before = {unit: one.clone() for unit, one in part._bases.items()}
            worker.step(*batch(number), (6, 6))
            if any(not torch.equal(before[unit], one) for unit, one in part._bases.items()):
                changed.append(number)
        return changed

    for found in train(2, net, lambda: KFAC(inv_update_steps=4, refresh="auto", grad_worker_fraction=1.0), use):
        assert found == steps


def sent(worker: CallbackWorker) -> dict[str, int]:
    """Bytes that this worker has sent so far on each line of its part."""
    part: Any = worker.part
    lines = part.run.lines.opened
    return {line.name: line.traffic.sent_bytes for line in lines if line.name.startswith("KFAC")}


@pytest.mark.parametrize(("share", "plain"), [(1.0, set()), (0.5, {"KFAC gradients"})])
def test_what_each_kind_of_step_exchanges(share: float, plain: set[str]) -> None:
    """A factor step sends nothing that a plain one does not; a refresh sends each sum once, to its owner, and a row of
    speeds; with f = 1 bases, too."""

    def use(worker: CallbackWorker) -> list[dict[str, int]]:
        found = []
        for number in range(5):
            before = sent(worker)
            worker.step(*batch(number), (6, 6))
            found.append({name: now - before[name] for name, now in sent(worker).items() if now - before[name]})
        return found

    ranks = train(
        2,
        net,
        lambda: KFAC(
            factor_update_steps=2, inv_update_steps=4, grad_worker_fraction=share, assignment_strategy="compute"
        ),
        use,
    )
    for steps in ranks:
        assert all(set(steps[number]) == plain for number in (1, 2, 3))  # factors are taken in the second
        assert ("KFAC bases" in steps[4]) == (share == 1.0)
    squares, edges, masses, rows = 25 + 64 + 64 + 9, 6 + 9, 2, 2 * len(WorkerRow._fields)
    assert sum(steps[4]["KFAC factors"] for steps in ranks) == 8 * (squares + edges + masses + rows)
