"""The adapters of ``uneven bench far-sites``: the arithmetic of all seeds at once is that of PEFT and torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("peft", reason="needs peft: pip install '.[peft]'")

from uneven_bench.far_sites.adapters import LENGTH, Adapters, adapted, gpt, learn

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of transformers by PEFT


@pytest.fixture(scope="module")
def task() -> Adapters:
    rows = torch.randint(128, (72, LENGTH), generator=torch.Generator().manual_seed(1))
    return Adapters(gpt(), rows[:48], rows[48:], 2)


def test_two_steps_of_each_seed_are_those_of_peft_and_adamw(task: Adapters) -> None:
    state, here = None, task.initial()
    own = [adapted(gpt(), seed) for seed in range(2)]
    trained = [[one for one in model.parameters() if one.requires_grad] for model in own]
    optimizers = [torch.optim.AdamW(some, lr=1e-2) for some in trained]
    for start in (0, 24):
        samples = torch.arange(start, start + 24)
        direction, state = task.direction(state, task.gradient(here, samples).value)
        here = here - task.learning_rate * direction
        for seed, (model, optimizer) in enumerate(zip(own, optimizers, strict=True)):
            x = task._rows[task._orders[seed, samples]]
            model(input_ids=x, labels=x).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    expected = torch.cat([one.detach().flatten() for some in trained for one in some])
    torch.testing.assert_close(here, expected, rtol=0, atol=5e-4)  # Adam divides tiny gradients by their size
    assert not torch.allclose(here, task.initial(), atol=1e-3)
    losses = [model(input_ids=task._held_out, labels=task._held_out).loss.item() for model in own]
    assert task.held_out(here) == pytest.approx(losses, abs=1e-4)


def test_every_policy_takes_equal_samples(task: Adapters) -> None:
    found = {policy: learn(policy, task, 2) for policy in ("bsp", "decoupled:every=1,outer_momentum=0")}
    assert [sum(one["samples"]) for one in found.values()] == [96, 96]
    assert found["decoupled:every=1,outer_momentum=0"]["samples"][0] > 32
    assert found["bsp"]["merges"] == 4
