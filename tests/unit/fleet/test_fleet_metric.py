"""What ``fleet.accuracy`` divides by."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from brought import brought, refusal
from uneven import fleet

Z = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [1.0, 2.0]])
Y = torch.tensor([0, 1, 1, 1])


@brought("losses", "Ray Train", "`fleet.accuracy`: labels `[N]`, `[N, 1]`, `[N, H, W]`")
def test_accuracy_is_over_samples() -> None:
    of = fleet.accuracy.of
    assert of is not None
    assert of(Z, Y) == of(Z, Y[:, None]) == of(Z.T[None, :, :, None], Y[None, :, None]) == 0.75


@pytest.mark.parametrize(
    ("output", "target"),
    [
        pytest.param(*given, marks=brought("losses", "Ray Train", f"`fleet.accuracy`: {what}", refused=True))
        for what, *given in [
            ("one logit for each sample", Z[:, :1], Y),
            ("class probabilities", Z, Z.softmax(1)),
            ("one output for each sample, `[N]`", Z[:, 0], Y),
        ]
    ],
)
def test_an_accuracy_of_other_shapes_is_refused(output: Tensor, target: Tensor) -> None:
    of = fleet.accuracy.of
    assert of is not None
    with refusal("give outputs"):
        of(output, target)
