"""A scene with its frames, boxes and truth, the same for all methods."""

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
    """A truth network with remembered answers about a scene; a call costs a method the mean of real calls. ``call_s``:
    processor seconds of a call, mean over all objects of the scene, in the truth network's batches; ``asked``: calls
    since it was last set to 0; ``remembering_s``: processor seconds of the look-ups since then, which a real truth
    network has not."""

    def __init__(self, truth: Truth, crops: Crops) -> None:
        super().__init__()
        self.classes = truth.classes
        self.network = truth.network
        self.asked = 0
        self.remembering_s = 0.0
        answers = []
        began_s = time.process_time()
        with torch.inference_mode():
            for at in range(0, len(crops), truth.batch):
                answers.append(truth.network(as_input(crops[at : at + truth.batch])))
        self.call_s = (time.process_time() - began_s) / max(1, len(crops))
        self.scores = torch.cat(answers)
        self._row = {crop.tobytes(): row for row, crop in enumerate(crops)}

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """[n, 3, side, side] → [n, classes]; the real network answers on an unknown crop."""
        self.asked += len(crops)
        began_s = time.process_time()
        pixels = crops.mul(255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
        rows = [self._row.get(crop.tobytes(), -1) for crop in pixels]
        said = self.network(crops) if -1 in rows else self.scores[rows]
        self.remembering_s += time.process_time() - began_s
        return said


class Noting(Moving):
    """A detector that keeps a small picture of every frame with motion."""

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
    """Objects of a stretch, with the truth about them."""

    objects: Objects
    seen: LabelledObjects
    rows: slice  # their places among the scene's objects
    small: npt.NDArray[np.uint8]  # of each frame with objects, uint8 [frames, h, w]; in the order of ``frames``
    frames: npt.NDArray[np.int64]


@dataclass(slots=True)
class SceneSeen:
    """A scene with its objects and truth."""

    scene: Scene
    whole: ScenePart
    learn: ScenePart
    check: ScenePart
    test: ScenePart
    memory: RememberedTruth  # the truth
    boxes_s: float  # processor seconds of frames and boxes, which every method is given
    tests_s: tuple[float, float]  # begin and end of the test part
    truth: Truth = field(init=False)

    def __post_init__(self) -> None:
        self.truth = Truth(self.memory, side=self.scene.truth.side)

    @property
    def call_s(self) -> float:
        return self.memory.call_s


def look_through(scene: Scene) -> SceneSeen:
    """Decode the scene, detect its objects, and name them all."""
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
