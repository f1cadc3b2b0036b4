"""The cheap networks: a ladder of decreasing size, each for a few classes and OTHER."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from uneven import fleet
from uneven.errors import ConfigError
from uneven.focus.pure.sweep import Looked
from uneven.focus.truth import Crops, as_input, work

# Channels and stride of the full network's convolutions; smaller networks lack the last ones.
_LAYERS = ((16, 1), (16, 1), (32, 2), (32, 1), (48, 2), (48, 1), (64, 2), (64, 1))


@dataclass(frozen=True, slots=True)
class LadderRung:
    """A step of the ladder.

    Attributes:
        removed: number of convolutions left out, of eight.
        side: side of the input in pixels; crops are reduced to it.
    """

    removed: int
    side: int


# [default] of ours; the paper removes layers one by one and shrinks the input.
LADDER = (LadderRung(0, 32), LadderRung(2, 24), LadderRung(4, 16), LadderRung(6, 16))

NAMED = (2, 5, 1000)  # the paper's L_s: numbers of most frequent classes with their own output; the last means all
_BATCH = 64


class Cheap(nn.Module):
    """A network of convolutions, a mean over the picture, and one linear layer, whose input is the feature."""

    def __init__(self, rung: LadderRung, outputs: int) -> None:  # outputs: named classes, and one for OTHER
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in _LAYERS[: len(_LAYERS) - rung.removed]:
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, outputs)
        self.side = rung.side

    def feature(self, crops: torch.Tensor) -> torch.Tensor:
        """Return the features (n, dim) of crops (n, 3, any, any)."""
        return self.body(smaller(crops, self.side)).mean((2, 3))

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, outputs) of crops (n, 3, any, any)."""
        return self.head(self.feature(crops))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rung for certain classes."""

    rung: LadderRung
    named: tuple[int, ...]  # classes with their own output, most frequent first
    classes: int  # number of the truth network's classes

    @property
    def name(self) -> str:
        return f"{len(_LAYERS) - self.rung.removed} layers, {self.rung.side} px, {len(self.named)} classes"

    def outputs(self) -> npt.NDArray[np.int64]:
        """Return the output for each class of the truth network, (classes,) int64."""
        result = np.full(self.classes, len(self.named))
        result[list(self.named)] = np.arange(len(self.named))
        return result

    def build(self) -> Cheap:
        return Cheap(self.rung, len(self.named) + 1)


class BalancedLoss:
    """The cross-entropy on a candidate's outputs in which every output, including OTHER, has equal total weight."""

    def __init__(self, outputs: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> None:
        self._outputs = torch.from_numpy(outputs)
        counts = np.bincount(outputs[labels], minlength=int(outputs.max()) + 1)
        present = max(1, int((counts > 0).sum()))
        weights = np.where(counts > 0, len(labels) / (np.maximum(counts, 1) * present), 0.0)
        self._weights = torch.tensor(weights, dtype=torch.float32)

    def __call__(self, logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the mean over the batch, a scalar, for logits (n, outputs) and the truth network's labels (n,)."""
        weights = self._weights
        if len(weights) < logits.shape[1]:  # all classes are named: OTHER never occurs
            weights = F.pad(weights, (0, logits.shape[1] - len(weights)))
        losses = F.cross_entropy(logits, self._outputs[label], weight=weights, reduction="sum")
        return losses / len(label)


def candidates(
    labels: npt.NDArray[np.int64], classes: int, ladder: Sequence[LadderRung] = LADDER, named: Sequence[int] = NAMED
) -> tuple[Candidate, ...]:
    """Return every rung with every distinct L_s for labels (n,) int64; ConfigError if there are none, or nothing to
    try."""
    if len(labels) == 0:
        raise ConfigError("nothing moves in the sampled frames: give a longer part of the video, or a detector")
    if not ladder or not named or min(named) < 1:
        raise ConfigError(f"ladder={ladder}, named={named}: give at least one network and one number of classes")
    counts = np.bincount(labels, minlength=classes)
    order = [int(one) for one in np.argsort(-counts, kind="stable") if counts[one]]
    # With few classes in the sample, different L_s name the same ones; a dict keeps each set once, in order.
    sets = dict.fromkeys(tuple(order[:most]) for most in named)
    return tuple(Candidate(rung, one, classes) for rung in ladder for one in sets)


class Labelled:
    """A data set of crops and the truth network's labels."""

    def __init__(self, crops: Crops, labels: npt.NDArray[np.int64]) -> None:
        self._crops = crops
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return as_input(self._crops[index : index + 1])[0], int(self._labels[index])


def flipped(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """Augment a sample, a crop (3, side, side): mirror every second one, and change the brightness."""
    crop, label = sample
    if torch.rand(()) < 0.5:
        crop = crop.flip(-1)
    return (crop * (0.8 + 0.4 * torch.rand(()))).clamp(0, 1), label


def member(candidate: Candidate, loss: BalancedLoss) -> fleet.Member:
    model = candidate.build()
    return fleet.Member(model, torch.optim.AdamW(model.parameters(), lr=3e-3), batch_size=_BATCH, loss=loss)


def ensemble(
    wanted: Sequence[Candidate], crops: Crops, labels: npt.NDArray[np.int64], epochs: int, seed: int = 0
) -> fleet.Ensemble:
    """Return the fleet of all candidates on the same crops (n, side, side, 3) and labels (n,)."""
    count = len(labels)
    if count > _BATCH and count % _BATCH == 1:  # batch norm cannot take a last batch of one crop
        count -= 1
    # One ensemble, so each crop is loaded and augmented once for all candidates.
    return fleet.Ensemble(
        members={one.name: partial(member, one, BalancedLoss(one.outputs(), labels)) for one in wanted},
        dataset=Labelled(crops[:count], labels[:count]),
        transform=flipped,
        max_epochs=epochs,
        seed=seed,
    )


def look(candidate: Candidate, model: Cheap, crops: Crops, batch: int = 256) -> Looked:
    """Return a trained candidate's outputs for crops (n, side, side, 3)."""
    confidence, feature = run(model, crops, batch)
    return Looked(candidate.name, candidate.named, confidence, feature, cost(model, crops.shape[1]))


def run(model: Cheap, crops: Crops, batch: int = 256) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return confidences (n, outputs) and features (n, dim) of crops (n, side, side, 3), both float32."""
    outputs, dim = model.head.out_features, model.head.in_features
    confidences, features = [np.zeros((0, outputs), np.float32)], [np.zeros((0, dim), np.float32)]
    with torch.inference_mode():
        for at in range(0, len(crops), batch):
            # Reduce before the conversion to float: on uint8 interpolation is several times as fast.
            small = smaller(torch.from_numpy(crops[at : at + batch]).permute(0, 3, 1, 2), model.side)
            feature = model.feature(small.float().div_(255))
            features.append(feature.numpy())
            confidences.append(model.head(feature).softmax(1).numpy())
    return np.concatenate(confidences), np.concatenate(features)


def smaller(crops: torch.Tensor, side: int) -> torch.Tensor:
    """Return crops (n, 3, any, any) reduced to (n, 3, side, side)."""
    if crops.shape[-1] == side:
        return crops
    return F.interpolate(crops, (side, side), mode="bilinear", antialias=True)


def fused(model: Cheap) -> Cheap:
    """Merge each normalization of a trained network into the convolution before it; the function stays the same."""
    layers: list[nn.Module] = []
    parts = list(model.eval().body)
    for conv, norm in zip(parts[::3], parts[1::3], strict=True):
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        layers += [fuse_conv_bn_eval(conv, norm), nn.ReLU()]
    model.body = nn.Sequential(*layers)
    return model


def cost(model: Cheap, side: int) -> float:
    return work(model, torch.zeros(1, 3, side, side))
