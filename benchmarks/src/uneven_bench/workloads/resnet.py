"""ResNet-32 on CIFAR-10, the other CPU workload of LB-BSP's authors.

The real data is ``cifar10/cifar10_10k2k_delta.npz`` in the folder named by ``UNEVEN_DATA``: 10,000 images to train and
2,000 to test. Without it, the digits that come with uneven stand in, enlarged to the same size.

Group norm takes the place of batch norm: a slow worker's part has a few images only, and their statistics would be a
matter of the split.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from uneven.cluster.series import DATA_VARIABLE
from uneven.cluster.virtual.datasets import digits
from uneven_bench.harness.data import CIFAR, cifar10, data_file
from uneven_bench.workloads.base import TrainingWorkload

_BLOCKS = 5  # in each of three stages: 6 · 5 + 2 = 32 layers
_GROUPS = 8
_HELD_OUT = 500  # images for an accuracy; all of them would take longer than the training


class _Block(nn.Module):
    """Two convolutions and a shortcut, which has zeros for new channels."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, channels)
        self._stride = stride
        self._new = channels - channels_in

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = F.relu(self.norm1(self.conv1(x)))
        short = F.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._new))
        return F.relu(self.norm2(self.conv2(found)) + short)


def resnet32(blocks: int = _BLOCKS) -> nn.Module:
    """0.46 million parameters for images of 3 × 32 × 32; the same weights on every call. ``blocks``: in a stage; three
    make ResNet-20."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(_GROUPS, 16), nn.ReLU()]
    before = 16
    for channels in (16, 32, 64):
        for place in range(blocks):
            layers.append(_Block(before, channels, 2 if place == 0 and channels > 16 else 1))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet(held_out: int = _HELD_OUT) -> TrainingWorkload:
    """Return the workload, with real images if they exist, and at most 2,000 ``held_out`` images for an accuracy.
    Raises DataError: the file has other contents."""
    if (path := data_file(CIFAR)) is not None:
        train, test = _cifar(path, held_out)
        about = "ResNet-32 on CIFAR-10 (10,000 images of it)"
    else:
        train, test = _enlarged()
        about = f"ResNet-32 on enlarged digits, for {DATA_VARIABLE} has no {CIFAR}"
    return TrainingWorkload(about=about, train=train, test=test, make=resnet32, rate=0.05)


def _cifar(path: Path, held_out: int) -> tuple[TensorDataset, TensorDataset]:
    x_train, y_train, x_test, y_test = cifar10(path)
    test = np.random.default_rng(0).permutation(len(y_test))[:held_out]
    return _tensors(x_train, y_train), _tensors(x_test[test], y_test[test])


def _enlarged() -> tuple[TensorDataset, TensorDataset]:
    parts = []
    for part in (digits().train, digits().test):
        x, y = part.tensors
        parts.append(TensorDataset(x.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1) - 0.5, y))
    return parts[0], parts[1]


def _tensors(images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> TensorDataset:
    x = torch.from_numpy(images.astype(np.float32) / np.float32(255) - np.float32(0.5))
    return TensorDataset(x, torch.from_numpy(labels.astype(np.int64)))
