"""A scene, gone through once: frames, boxes, and what the truth network says; all methods are given the same."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from uneven.focus.background_subtraction import Boxes, Moving
from uneven.focus.objects import Objects, found
from uneven.focus.pure.sweep import LabelledObjects
from uneven.focus.truth import Crops, Truth, as_input
from uneven_bench.focus.scenes import Scene


class RememberedTruth(torch.nn.Module):
    """A truth network whose answers about a scene are known; a method pays for a call what a call has cost.

    Attributes:
        call_s: processor seconds of a call, mean over all objects of the scene, in the truth network's batches.
        asked: calls since it was last set to 0.
        remembering_s: processor seconds that finding the answers took since then; no truth network has such a cost.
    """

    def __init__(self, truth: Truth, crops: Crops) -> None:
        super().__init__()
        self.classes = truth.classes
        self.network = truth.network
        self.asked, self.remembering_s = 0, 0.0
        answers = []
        began_s = time.process_time()
        with torch.inference_mode():
            for at in range(0, len(crops), truth.batch):
                answers.append(truth.network(as_input(crops[at : at + truth.batch])))
        self.call_s = (time.process_time() - began_s) / max(1, len(crops))
        self.scores = torch.cat(answers)
        self._row = {crop.tobytes(): row for row, crop in enumerate(crops)}

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """[n, 3, side, side] → [n, classes]; of a crop that it has not seen, by the network itself."""
        self.asked += len(crops)
        began_s = time.process_time()
        pixels = crops.mul(255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
        rows = [self._row.get(crop.tobytes(), -1) for crop in pixels]
        said = self.network(crops) if -1 in rows else self.scores[rows]
        self.remembering_s += time.process_time() - began_s
        return said


class Noting(Moving):
    """The detector of the bench: keeps a small picture of every frame in which something moves."""

    def __init__(self) -> None:
        super().__init__()
        self.small: list[npt.NDArray[np.uint8]] = []

    def __call__(self, pixels: npt.NDArray[np.uint8]) -> Boxes:
        boxes = super().__call__(pixels)
        if len(boxes):
            step = max(1, pixels.shape[1] // 64)
            self.small.append(pixels[::step, ::step, 1].copy())
        return boxes


@dataclass(frozen=True, slots=True)
class ScenePart:
    """Objects of a stretch, with the truth about them.

    Attributes:
        rows: which of the scene's objects they are.
        small: of each frame with objects, uint8 [frames, h, w]; they come in the order of ``frames``.
    """

    objects: Objects
    seen: LabelledObjects
    rows: slice
    small: npt.NDArray[np.uint8]
    frames: npt.NDArray[np.int64]

    def share(self, label: int) -> float:
        """The share of frames with an object of this class."""
        return len(np.unique(self.seen.frame[self.seen.label == label])) / max(1, len(self.frames))


@dataclass(slots=True)
class SceneSeen:
    """Everything about a scene.

    Attributes:
        boxes_s: processor seconds of frames and boxes, which every method is given.
        memory: the truth.
        tests_s: from when until when the part lies that tests.
    """

    scene: Scene
    whole: ScenePart
    learn: ScenePart
    check: ScenePart
    test: ScenePart
    memory: RememberedTruth
    boxes_s: float
    tests_s: tuple[float, float]
    truth: Truth = field(init=False)

    def __post_init__(self) -> None:
        self.truth = Truth(self.memory, side=self.scene.truth.side)

    @property
    def call_s(self) -> float:
        """Processor seconds of a call of the truth network."""
        return self.memory.call_s


def look_through(scene: Scene) -> SceneSeen:
    """Decode, find, and have everything named."""
    began_s = time.process_time()
    finder = Noting()
    parts = list(found(scene.source.frames(scene.options.per_s), finder, scene.truth.side))
    objects = Objects.join(parts, scene.truth.side)
    boxes_s = time.process_time() - began_s
    memory = RememberedTruth(scene.truth, objects.crops)
    labels = memory.scores.argmax(1).numpy()
    ends_s = (scene.learn_s, scene.learn_s + scene.check_s)
    bounds = [0, *(int(np.searchsorted(objects.time_s, end)) for end in ends_s), len(objects)]
    small = np.stack(finder.small)
    learn, check, test = (_part(objects, labels, slice(*pair), scene, small) for pair in pairwise(bounds))
    whole = _part(objects, labels, slice(0, len(objects)), scene, small)
    return SceneSeen(scene, whole, learn, check, test, memory, boxes_s, (ends_s[1], objects.last[1] + 1))


def _part(
    objects: Objects, labels: npt.NDArray[np.int64], rows: slice, scene: Scene, small: npt.NDArray[np.uint8]
) -> ScenePart:
    frame = objects.frame[rows]
    mine = Objects(frame, objects.time_s[rows], objects.boxes[rows], objects.crops[rows], len(np.unique(frame)))
    frames = np.unique(frame)
    place = np.searchsorted(np.unique(objects.frame), frames)
    return ScenePart(mine, LabelledObjects(frame, labels[rows], len(scene.truth.classes)), rows, small[place], frames)
