"""A world whose answers are known: squares of one colour each, and a network that names colours."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from uneven.focus import Embedding, Sprites

NAMES = ("red", "green", "blue", "yellow", "white", "black")
PALETTE = np.array([[220, 30, 30], [30, 200, 30], [30, 30, 220], [220, 210, 30], [250, 250, 250], [5, 5, 5]])


class Colours(nn.Module):
    """Names the colour in the middle of a crop; its third layer is there to cost something."""

    classes = NAMES

    def __init__(self) -> None:
        super().__init__()
        self.palette = nn.Parameter(torch.tensor(PALETTE / 255, dtype=torch.float32))
        self.slow = nn.Conv2d(3, 256, 7, padding=3)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        side = crops.shape[-1]
        middle = crops[:, :, side // 3 : -(side // 3), side // 3 : -(side // 3)].mean((2, 3))
        return -torch.cdist(middle, self.palette) + 0 * self.slow(crops).mean()


def sprites(seconds: int = 400, seed: int = 0, **more: object) -> Sprites:
    draw = np.random.default_rng(0)
    labels = np.arange(len(NAMES)).repeat(5)
    noise = draw.integers(-12, 13, (len(labels), 16, 16, 3))
    pictures = np.clip(PALETTE[labels][:, None, None] + noise, 0, 255).astype(np.uint8)
    return Sprites(pictures=pictures, labels=labels, seconds=seconds, size=(96, 128), scale=1, seed=seed, **more)


def frames_with(name: str, source: Sprites) -> set[int]:
    label = NAMES.index(name)
    return {number for number in range(source.seconds) if label in [one for one, _ in source.shown(number)]}


def by_colour(name: str = "mean colour") -> Embedding:
    """Pictures and texts in the space of colours: what a network such as CLIP is for things."""

    def picture(crops: torch.Tensor) -> torch.Tensor:
        side = crops.shape[-1]
        return crops[:, :, side // 3 : -(side // 3), side // 3 : -(side // 3)].mean((2, 3)) - 0.5

    return Embedding(picture, lambda text: PALETTE[NAMES.index(text.split()[-1])] / 255 - 0.5, name, side=24)
