"""The expensive network, whose labels are the ground truth, and its cost."""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from uneven.errors import ConfigError, DataError
from uneven.policy.core.apportion import proportional

Crops = npt.NDArray[np.uint8]  # (n, side, side, 3), RGB


def as_input(crops: Crops) -> torch.Tensor:
    """Return the input of networks, (n, 3, side, side) float32 in 0 … 1."""
    return torch.from_numpy(crops).permute(0, 3, 1, 2).float().div_(255)


class Truth:
    """The truth network, called as rarely as possible.

    Args:
        network: (n, 3, side, side) float32 in 0 … 1 → scores (n, classes): confidences or logits. A module is set to
            evaluation mode.
        classes: the names of its outputs; by default its attribute ``classes``.
        side: side of its input in pixels.
        batch: objects at a time, on each device.
        devices: torch's names of devices that each get a copy; a batch is split among them by their measured speed. By
            default the network stays where it is.

    Attributes:
        calls: number of objects labelled so far.

    Raises:
        ConfigError: it has no classes, or two of one name.
    """

    def __init__(
        self,
        network: Callable[[torch.Tensor], Any],
        classes: Sequence[str] | None = None,
        side: int = 64,
        batch: int = 64,
        devices: Sequence[str] = (),
    ) -> None:
        names = classes if classes is not None else getattr(network, "classes", None)
        if not names:
            raise ConfigError("the truth network has no list of classes: give Truth(network, classes=[…])")
        self.classes = tuple(str(name) for name in names)
        if len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"two classes of the truth network have one name: {', '.join(self.classes)}")
        if isinstance(network, nn.Module):
            network.eval()
        self.network = network
        self.side = side
        self.batch = batch
        self.calls = 0
        self._copies = [_Copy(network, None)]
        if devices and not isinstance(network, nn.Module):
            raise ConfigError(
                "devices= needs a torch module as the truth network, because it is copied to each: leave devices out"
            )
        if devices and isinstance(network, nn.Module):
            self._copies = [_Copy(copy.deepcopy(network).to(device), device) for device in devices]

    def label(self, crops: Crops) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the likeliest class of each of ``crops`` (n, side, side, 3) and its score, (n,) int64 and float32.

        Raises:
            DataError: the network's output is not finite, or not (n, classes).
        """
        labels, scores = np.zeros(len(crops), np.int64), np.zeros(len(crops), np.float32)
        for at in range(0, len(crops), self.at_once):
            part = slice(at, at + self.at_once)
            answer = self._ask(crops[part])
            labels[part], scores[part] = answer.argmax(1), answer.max(1)
        return labels, scores

    @property
    def identity(self) -> str:
        """The digest of its classes and input size, by which an index recognizes it."""
        said = "\n".join((*self.classes, str(self.side)))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def work(self) -> float:
        """Return the floating-point operations for one object."""
        return work(self.network, torch.zeros(1, 3, self.side, self.side))

    @property
    def at_once(self) -> int:
        """The number of objects of one round on all devices."""
        return self.batch * len(self._copies)

    def speeds(self) -> tuple[float, ...]:
        """Return each device's objects per second in the last round; NaN before the first."""
        return tuple(one.per_s for one in self._copies)

    def _ask(self, crops: Crops) -> npt.NDArray[np.float32]:
        shares = proportional(self.speeds(), len(crops))
        ends = np.cumsum(shares)
        parts = [crops[end - share : end] for end, share in zip(ends, shares, strict=True)]
        if len(self._copies) == 1:
            answers = [self._copies[0](crops)]
        else:
            with ThreadPoolExecutor(len(self._copies)) as pool:
                answers = list(pool.map(lambda one, part: one(part), self._copies, parts))
        self.calls += len(crops)
        for part, answer in zip(parts, answers, strict=True):
            self._check(answer, len(part))
        return torch.cat([one for one in answers if len(one)]).numpy()

    def _check(self, answer: torch.Tensor, count: int) -> None:
        if count and answer.shape != (count, len(self.classes)):
            raise DataError(
                f"the truth network returned shape {list(answer.shape)} for {count} objects and "
                f"{len(self.classes)} classes: return [objects, classes]"
            )
        if not bool(torch.isfinite(answer).all()):
            raise DataError("the truth network returned NaN or infinity: check its weights and the scale of its input")


class _Copy:
    """The network on one device, with its measured speed."""

    def __init__(self, network: Callable[[torch.Tensor], Any], device: str | None) -> None:
        self._network = network
        self._device = device
        self.per_s = math.nan

    def __call__(self, crops: Crops) -> torch.Tensor:
        if not len(crops):
            return torch.zeros(0)
        began_s = time.perf_counter()
        given = as_input(crops)
        with torch.inference_mode():
            answer = (
                torch.as_tensor(self._network(given if self._device is None else given.to(self._device))).float().cpu()
            )
        self.per_s = len(crops) / (time.perf_counter() - began_s)
        return answer


def work(call: Callable[[torch.Tensor], Any], example: torch.Tensor) -> float:
    """Return the floating-point operations of ``call(example)``, of any shape, as torch counts them; ConfigError if
    none."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        call(example)
    found = float(counter.get_total_flops())
    if found <= 0:
        raise ConfigError("torch counted no operations of the network: give a network that computes with torch")
    return found
