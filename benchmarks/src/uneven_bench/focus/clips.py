"""Real scenes, and the truth network for their objects, which is trained here too.

The clips have no labels. In each, we named forty crops by hand (``named.json``: frame, left, top, right, bottom); every
other one gets the name of the most similar one. The network learns from four fifths of the crops; its quality is its
agreement with those names on the last fifth, frames of the same clips.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from uneven.focus import IngestOptions, LadderRung, Moving, Truth, Video
from uneven.focus.background_subtraction import cut_out
from uneven.focus.objects import Objects, found
from uneven.focus.truth import Crops, as_input
from uneven_bench.focus.scenes import Scene
from uneven_bench.focus.truth import Expensive, TruthLesson, kept, quality
from uneven_bench.harness.data import needed_file

SIDE = 64

_STEPS = 500
_NAMED = Path(__file__).with_name("named.json")
_HELD_OUT = 5


@dataclass(frozen=True, slots=True)
class _Clip:
    """A clip's crops, each with the name of the most similar hand-named one."""

    video: Video
    per_s: float
    crops: Crops
    names: list[str]


def clips(told: Callable[[float], None]) -> list[Scene]:
    """Return the five clips of UNEVEN_DATA; the first half of each is the sample. Raises DataError: unknown
    folder."""
    have = [_clip(name, one) for name, one in json.loads(_NAMED.read_text()).items()]
    classes = tuple(sorted({name for clip in have for name in clip.names}))
    crops = np.concatenate([clip.crops for clip in have])
    labels = np.array([classes.index(name) for clip in have for name in clip.names])
    held_out = np.arange(len(labels)) % _HELD_OUT == 0
    weight = 1 / np.sqrt(np.bincount(labels)[labels])
    lesson = TruthLesson(crops[~held_out], labels[~held_out], weight[~held_out])
    network = kept("clips", lambda: Expensive(classes), lesson, _STEPS, told)
    good = quality(network, crops[held_out], labels[held_out])
    return [_scene(clip, network, good) for clip in have]


def _scene(clip: _Clip, network: Expensive, good: float) -> Scene:
    length_s = clip.video.length_s() or 0.0
    return Scene(
        source=clip.video, truth=Truth(network, side=SIDE), learn_s=length_s / 4, check_s=length_s / 4, quality=good,
        options=IngestOptions(per_s=clip.per_s), ladder=(LadderRung(2, 24), LadderRung(4, 16)), named=(1000,),
    )  # fmt: skip


def _clip(name: str, known: dict[str, Any]) -> _Clip:
    video, boxes = Video(needed_file("videos", name)), known["named"]
    wanted = [(label, row) for label, rows in boxes.items() for row in rows]
    numbers = {row[0] for _, row in wanted}
    shown = {frame.number: frame.pixels for frame in video.frames(known["per_s"]) if frame.number in numbers}
    samples = [cut_out(shown[row[0]], np.array([row[1:]], np.int32), SIDE)[0] for _, row in wanted]
    every = Objects.join(list(found(video.frames(known["per_s"]), Moving(), SIDE)), SIDE)
    nearest = torch.cdist(_looks(every.crops), _looks(np.stack(samples))).argmin(1).tolist()
    return _Clip(video, known["per_s"], every.crops, [wanted[one][0] for one in nearest])


def _looks(crops: Crops) -> torch.Tensor:
    """Return crops of eight by eight pixels, (n, 192)."""
    return F.interpolate(as_input(crops), (8, 8), mode="area").flatten(1)
