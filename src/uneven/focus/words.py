"""Asking in words: the centroids whose pictures lie nearest to a text, by a network that embeds both (such as CLIP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from uneven.errors import DataError
from uneven.focus.store import StreamStore
from uneven.focus.truth import Crops, as_input

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A network of the user's that puts pictures and texts into one space.

    ::

        clip = Embedding(model.encode_image, lambda text: model.encode_text(tokenize(text)), name="ViT-B-32", side=224)

    Args:
        picture: float32 [n, 3, side, side] in 0 … 1 → [n, d]. It normalizes pictures itself, where that is wanted.
        text: a text → d numbers.
        name: tells it from others: what it says of centroids is kept under this name.
        side: of the squares that it gets, in pixels; None for those that are kept of centroids, as they are.
        batch: centroids at a time.
    """

    picture: Callable[[torch.Tensor], Any]
    text: Callable[[str], Any]
    name: str
    side: int | None = None
    batch: int = 64

    def of_text(self, text: str) -> Rows:
        """[d], of length 1.

        Raises:
            DataError: no numbers, or the number 0 alone.
        """
        with torch.inference_mode():
            return _rows(self.text(text), 1, f"the text {text!r}")[0]

    def of_crops(self, crops: Crops) -> Rows:
        """[n, d], each of length 1.

        Raises:
            DataError: as :meth:`of_text`, or another number of rows.
        """
        with torch.inference_mode():
            pictures = as_input(crops)
            if self.side is not None and self.side != crops.shape[1]:
                pictures = F.interpolate(pictures, (self.side, self.side), mode="bilinear", antialias=True)
            return _rows(self.picture(pictures), len(crops), "pictures")


def nearness(store: StreamStore, by: Embedding, clusters: list[int], wanted: Rows) -> tuple[Rows, int]:
    """The cosine of each centroid and a text, [clusters], and how many of them the network had to be shown for it.

    Args:
        wanted: the text, [d], of length 1.

    Raises:
        DataError: pictures and text come in different widths.
    """
    fresh = len(clusters) - len(store.numbers(by.name, clusters))
    rows = store.once(by.name, clusters, by.of_crops, by.batch)
    other = [len(row) for row in rows if len(row) != len(wanted)]
    if other:
        raise DataError(
            f"embedding {by.name!r} gives {len(wanted)} numbers for a text and {other[0]} for centroids of "
            f"{store.folder}: if another network had that name, give this one a name of its own"
        )
    return np.stack(rows) @ wanted, fresh


def _rows(found: Any, count: int, what: str) -> Rows:
    rows = np.asarray(found.detach().cpu() if isinstance(found, torch.Tensor) else found, np.float32)
    rows = rows.reshape(1, -1) if rows.ndim == 1 and count == 1 else rows
    length = np.linalg.norm(rows, axis=-1, keepdims=True) if rows.ndim == 2 else np.zeros(1)
    if rows.ndim != 2 or len(rows) != count or not np.isfinite(length).all() or not length.all():
        raise DataError(
            f"for {what} the embedding network gives {rows.shape}: {count} rows of numbers that are not all 0 are due"
        )
    return rows / length
