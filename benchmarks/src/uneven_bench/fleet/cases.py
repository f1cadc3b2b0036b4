"""The members of ``uneven bench fleet``: six small networks in three pairs of like speed, and two augmentations."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset

from uneven.cluster.virtual.datasets import images
from uneven.fleet import Ensemble, Member, accuracy, never

Sample = tuple[torch.Tensor, torch.Tensor]

WIDTHS = {"tiny": (4, 1), "tiny-2": (5, 1), "middle": (8, 2), "middle-2": (9, 2), "large": (22, 3), "large-2": (26, 3)}
"""Member → channels and number of convolutions. All differ, and the slowest needs about eight times as long as the
fastest."""

BATCH = 32


def member(width: int, depth: int, side: int) -> Member:
    """Return a network of ``depth`` convolutions on images of ``side`` × ``side`` pixels."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(width * (side // 2) ** 2, 10)]
    model = nn.Sequential(*layers)
    return Member(model, torch.optim.Adam(model.parameters(), lr=2e-3), batch_size=BATCH)


def light(sample: Sample) -> Sample:
    """Move the image by up to two pixels and mirror it at random."""
    image, label = sample
    side = image.shape[-1]
    top, left, flip = torch.randint(0, 5, (3,)).tolist()
    image = F.pad(image, (2, 2, 2, 2))[:, top : top + side, left : left + side]
    return (image.flip(-1) if flip < 2 else image), label


def heavy(sample: Sample) -> Sample:
    """Mix the image with two changed copies, then apply :func:`light`: like AugMix (Hendrycks et al., *AugMix*, ICLR
    2020), which has three chains of other changes."""
    image, label = sample
    side = image.shape[-1]
    parts = torch.rand(3) + 0.1
    chains = torch.stack([image, _changed(image), _changed(image)])
    image = ((parts / parts.sum()).view(3, 1, 1, 1) * chains).sum(0)
    image = light((image, label))[0].clone()
    top, left = torch.randint(0, side - side // 4, (2,)).tolist()
    image[:, top : top + side // 4, left : left + side // 4] = torch.rand(())
    return image, label


def _changed(image: torch.Tensor) -> torch.Tensor:
    """Turn, scale and shear, bend and blur an image (channels, side, side), and change its contrast."""
    side = image.shape[-1]
    turn, scale, shear = (torch.rand(3) - 0.5).tolist()
    angle, size = 0.6 * turn, 1.0 + 0.3 * scale
    matrix = torch.tensor(
        [[size * math.cos(angle), -math.sin(angle) + 0.3 * shear, 0.0], [math.sin(angle), size * math.cos(angle), 0.0]]
    )
    grid = F.affine_grid(matrix[None], [1, 1, side, side], align_corners=False)
    bend = F.interpolate(0.1 * torch.randn(1, 2, 4, 4), size=(side, side), mode="bicubic", align_corners=False)
    image = F.grid_sample(image[None], grid + bend.permute(0, 2, 3, 1), align_corners=False)
    for _ in range(2):
        image = F.avg_pool2d(F.pad(image, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return ((image - image.mean()) * (0.8 + 0.4 * torch.rand(())) + image.mean())[0]


CASES: dict[str, Callable[[Sample], Sample]] = {"preprocessing-heavy": heavy, "preprocessing-light": light}


def ensemble(data: str, case: str, order: tuple[str, ...], *, samples: int, epochs: int, seed: int = 0) -> Ensemble:
    """Return the six members in this order; the seed decides first weights and the order of samples."""
    found = images(data)
    side = found.train.tensors[0].shape[-1]
    given: dict[str, Any] = {name: partial(member, *WIDTHS[name], side) for name in order}
    return Ensemble(
        members=given,
        dataset=Subset(found.train, range(min(samples, len(found.train)))),
        transform=CASES[case],
        validate=Subset(found.test, range(min(samples // 4, len(found.test)))),
        metric=accuracy,
        converged=never(),
        max_epochs=epochs,
        seed=seed,
    )
