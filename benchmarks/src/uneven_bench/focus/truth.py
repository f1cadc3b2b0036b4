"""Truth networks of the bench, trained once and kept in the user's cache, with their quality.

A convolutional network of 48 million multiply-adds for a view of 32 x 32 pixels. It sees several views of each object,
so its answer does not change with a pixel of the box; a query pays for all views.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from uneven.focus.truth import Crops, as_input

_VIEWS = ((1.0, False), (1.0, True), (0.88, False), (0.88, True), (1.12, False), (1.12, True))
"""Zoom and mirroring of the views whose confidences are averaged."""

_BATCH = 128
_RATE = 0.1


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class _Twice(nn.Module):
    """Two layers, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_layer(width, width), _layer(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Expensive(nn.Module):
    """The truth network: float [n, 3, any, any] → confidences [n, classes], the mean over the views."""

    def __init__(self, classes: Sequence[str], width: int = 32) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.body = nn.Sequential(
            _layer(3, width),
            nn.MaxPool2d(2),
            _layer(width, 2 * width),
            _Twice(2 * width),
            nn.MaxPool2d(2),
            _layer(2 * width, 4 * width),
            _Twice(4 * width),
        )
        self.head = nn.Linear(4 * width, len(self.classes))
        for one in self.parameters():
            if one.ndim == 4:
                one.data = one.data.contiguous(memory_format=torch.channels_last)

    def logits(self, views: torch.Tensor) -> torch.Tensor:
        """[n, 3, 32, 32] → [n, classes]."""
        return self.head(self.body(views.contiguous(memory_format=torch.channels_last)).amax((2, 3)))

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        small = F.interpolate(crops, (32, 32), mode="bilinear", antialias=True) if crops.shape[-1] != 32 else crops
        said = [self.logits(_zoomed(small, zoom, mirrored)).softmax(1) for zoom, mirrored in _VIEWS]
        return torch.stack(said).mean(0)


def _zoomed(crops: torch.Tensor, zoom: float, mirrored: bool) -> torch.Tensor:
    if zoom != 1.0:
        matrix = torch.tensor([[zoom, 0.0, 0.0], [0.0, zoom, 0.0]]).expand(len(crops), 2, 3)
        grid = F.affine_grid(matrix, list(crops.shape), align_corners=False)
        crops = F.grid_sample(crops, grid, padding_mode="border", align_corners=False)
    return crops.flip(-1) if mirrored else crops


@dataclass(frozen=True, slots=True)
class TruthLesson:
    """The lesson of a truth network."""

    crops: Crops  # uint8 [n, side, side, 3]
    labels: npt.NDArray[np.int64]  # int64 [n]
    weight: npt.NDArray[np.float64]  # relative frequency of each in the draw; float [n]


def train(network: Expensive, lesson: TruthLesson, steps: int, told: Callable[[float], None], seed: int = 0) -> None:
    """Train by gradient descent with one cycle of the learning rate; each crop is moved, zoomed, mirrored and lit at
    random."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=_RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=_RATE, total_steps=steps, pct_start=0.25)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    chances = lesson.weight / lesson.weight.sum()
    network.train()
    for step in range(steps):
        picked = draw.choice(len(chances), _BATCH, p=chances)
        crops = F.interpolate(as_input(lesson.crops[picked]), (32, 32), mode="bilinear", antialias=True)
        optimizer.zero_grad()
        loss(network.logits(_changed(crops)), torch.from_numpy(lesson.labels[picked])).backward()
        optimizer.step()
        rate.step()
        told((step + 1) / steps)
    network.eval()


def _changed(crops: torch.Tensor) -> torch.Tensor:
    count = len(crops)
    zoom = torch.empty(count).uniform_(0.75, 1.15)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = zoom * torch.where(torch.rand(count) < 0.5, -1.0, 1.0)
    matrix[:, 1, 1] = zoom
    matrix[:, :, 2] = torch.empty(count, 2).uniform_(-0.2, 0.2)
    grid = F.affine_grid(matrix, list(crops.shape), align_corners=False)
    moved = F.grid_sample(crops, grid, padding_mode="reflection", align_corners=False)
    return (moved * torch.empty(count, 1, 1, 1).uniform_(0.8, 1.2)).clamp(0, 1)


def kept(
    name: str, made: Callable[[], Expensive], lesson: TruthLesson, steps: int, told: Callable[[float], None]
) -> Expensive:
    """Return the network of this lesson from the cache, or train and store it. ``name``: of the file; ``made`` gives an
    untrained one."""
    seen = hashlib.sha256(f"{steps} {made()}".encode())
    for array in (lesson.crops, lesson.labels, lesson.weight):
        seen.update(np.ascontiguousarray(array).data)
    path = cache() / f"{name}-{seen.hexdigest()[:12]}.pt"
    torch.manual_seed(0)
    network = made()
    if path.exists():
        network.load_state_dict(torch.load(path, weights_only=True))
        return network.eval()
    train(network, lesson, steps, told)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    torch.save(network.state_dict(), part)
    part.replace(path)
    return network


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uneven" / "bench-focus"


def quality(network: Expensive, crops: Crops, labels: npt.NDArray[np.int64]) -> float:
    """Return the share of crops [n, side, side, 3] that it names rightly."""
    right = 0
    with torch.inference_mode():
        for at in range(0, len(crops), 256):
            said = network(as_input(crops[at : at + 256]))
            right += int((said.argmax(1).numpy() == labels[at : at + 256]).sum())
    return right / len(crops)
