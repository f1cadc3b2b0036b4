"""How unlike the statistics of two sites are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.run.model.batch_norm import batch_norms, divergence


def net(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(0)
    normal = norm(4) if norm is nn.BatchNorm2d else nn.GroupNorm(2, 4)
    return nn.Sequential(nn.Conv2d(1, 4, 3), normal, nn.ReLU())


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.GroupNorm])
def test_alike_sites_are_near_and_unlike_ones_are_not(norm: type[nn.Module]) -> None:
    model = net(norm)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    alike = [2 + torch.randn(20, 1, 8, 8) for _ in range(6)]
    unlike = [5 + torch.randn(20, 1, 8, 8) for _ in range(3)]
    near, far = divergence(model, alike[:3], alike[3:]), divergence(model, alike[:3], unlike)
    assert near.shape == (4,)
    assert near.median() < 0.1 < 0.3 < far.median()
    assert divergence(model, alike[:1], alike[:1]).max() == 0
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert model.training


def test_what_is_not_there_is_refused() -> None:
    assert batch_norms(net()) == ["1"]
    assert batch_norms(net(nn.GroupNorm)) == []
    with pytest.raises(ConfigError, match="normalizes"):
        divergence(nn.Linear(2, 2), [torch.ones(1, 2)], [torch.ones(1, 2)])
    with pytest.raises(ConfigError, match="no layer 7"):
        divergence(net(), [], [], layer="7")
    with pytest.raises(ConfigError, match="has no batches"):
        divergence(net(), [], [torch.ones(1, 1, 8, 8)])
