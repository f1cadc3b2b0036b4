"""The text search: find centroids nearest to a text with a network that embeds both, such as CLIP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from uneven.errors import DataError
from uneven.focus.index import StreamStore
from uneven.focus.truth import Crops, as_input

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A user's network that maps pictures and texts to one space.

    ::

        clip = Embedding(model.encode_image, lambda text: model.encode_text(tokenize(text)), name="ViT-B-32", side=224)

    Args:
        picture: (n, 3, side, side) float32 in 0 … 1 → (n, d). It normalizes pictures itself if necessary.
        text: a text → (d,).
        name: its embeddings of centroids are stored under this name.
        side: side of its input in pixels; None for the stored size of centroids.
        batch: centroids at a time.
    """

    picture: Callable[[torch.Tensor], Any]
    text: Callable[[str], Any]
    name: str
    side: int | None = None
    batch: int = 64

    def of_text(self, text: str) -> Rows:
        """Return the embedding of a text, (d,), of length 1.

        Raises:
            DataError: the network returns no finite numbers, or only zeros.
        """
        with torch.inference_mode():
            return _rows(self.text(text), 1, f"the text {text!r}")[0]

    def of_crops(self, crops: Crops) -> Rows:
        """Return the embeddings of crops (n, side, side, 3) as (n, d), each of length 1.

        Raises:
            DataError: as :meth:`of_text`, or another number of rows.
        """
        with torch.inference_mode():
            pictures = as_input(crops)
            if self.side is not None and self.side != crops.shape[1]:
                pictures = F.interpolate(pictures, (self.side, self.side), mode="bilinear", antialias=True)
            return _rows(self.picture(pictures), len(crops), "pictures")


def nearness(store: StreamStore, by: Embedding, clusters: list[int], wanted: Rows) -> tuple[Rows, int]:
    """Return the cosine of each centroid and a text's embedding (d,), as (clusters,), and the number newly embedded.

    Raises DataError if pictures and text differ in width.
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
