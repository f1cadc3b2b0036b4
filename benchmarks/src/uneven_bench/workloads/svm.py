"""A small support vector machine on sparse data, one of the two CPU workloads of LB-BSP's authors.

The real data is ``sparse/url_lexical.npz`` in the folder named by ``UNEVEN_DATA``: malicious and other URLs with binary
lexical features, and a split in which no domain is on both sides. Without it, made-up sparse rows stand in.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from uneven.cluster.series import DATA_VARIABLE
from uneven_bench.harness.data import arrays, data_file
from uneven_bench.workloads.base import TrainingWorkload

FEATURES = 128  # the number of features kept of a row; most rows have fewer
_FILE = Path("sparse") / "url_lexical.npz"
_KEYS = ("indptr", "index_delta", "n_features", "y", "split")

Rows = npt.NDArray[np.int64]  # shape (samples, FEATURES); a shorter row is filled with the number of features


class LinearSVM(nn.Module):
    """A model w · x + b for binary features, given by their numbers; the number ``features`` stands for none."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Embedding(features + 1, 1, padding_idx=features)
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.weight.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """int64 ``(n, FEATURES)`` → margins ``(n,)``."""
        found: torch.Tensor = self.weight(x).sum((1, 2)) + self.bias
        return found


def hinge(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean of max(0, 1 - y f(x)), a scalar; y (n,) is -1 or 1."""
    return F.relu(1.0 - y * model(x)).mean()


def same_sign(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return whether each sample lies on its side, bool (n,)."""
    found: torch.Tensor = model(x) * y > 0
    return found


def svm() -> TrainingWorkload:
    """Return the workload, with real URLs if they exist. Raises DataError: the file has other contents."""
    if (path := data_file(_FILE)) is not None:
        rows, labels, held_out, features = _urls(path)
        about = "a linear SVM on sparse URLs (url_lexical)"
    else:
        rows, labels, held_out, features = _made_up()
        about = f"a linear SVM on made-up sparse rows, for {DATA_VARIABLE} has no {_FILE}"
    train, test = (_tensors(rows[part], labels[part]) for part in (~held_out, held_out))
    return TrainingWorkload(
        about=about, train=train, test=test, make=lambda: LinearSVM(features), loss=hinge, right=same_sign,
        rate=0.05, whole=True,
    )  # fmt: skip


def _urls(path: Path) -> tuple[Rows, npt.NDArray[np.float32], npt.NDArray[np.bool_], int]:
    starts, deltas, count, y, split = (one.astype(np.int64) for one in arrays(path, _KEYS))
    numbers = np.cumsum(deltas)  # differences within a row, the first one its number
    before = np.where(starts[:-1] > 0, numbers[np.maximum(starts[:-1], 1) - 1], 0)
    numbers -= np.repeat(before, np.diff(starts))
    features = int(count)
    return padded(starts, numbers, features), np.where(y > 0, 1.0, -1.0).astype(np.float32), split == 1, features


def padded(starts: Rows, numbers: Rows, features: int) -> Rows:
    """Return rows of one length, (n, FEATURES), from concatenated ones, cut or filled with ``features``. ``starts``:
    begin of each row in ``numbers``, and the end of the last one."""
    lengths = np.diff(starts)
    rows = np.full((len(lengths), FEATURES), features, dtype=np.int64)
    row = np.repeat(np.arange(len(lengths)), lengths)
    column = np.arange(len(numbers)) - np.repeat(starts[:-1], lengths)
    kept = column < FEATURES
    rows[row[kept], column[kept]] = numbers[kept]
    return rows


def _made_up(
    samples: int = 20_000, features: int = 50_000
) -> tuple[Rows, npt.NDArray[np.float32], npt.NDArray[np.bool_], int]:
    """Return rows of 80 features, few of them frequent and most of them rare; a hidden weight of each decides."""
    rng = np.random.default_rng(0)
    numbers = (features * rng.random((samples, 80)) ** 3).astype(np.int64)
    margins = rng.normal(size=features)[numbers].sum(1)
    rows = np.full((samples, FEATURES), features, dtype=np.int64)
    rows[:, :80] = numbers
    held_out = np.arange(samples) % 5 == 4
    return rows, np.where(margins > 0, 1.0, -1.0).astype(np.float32), held_out, features


def _tensors(rows: Rows, labels: npt.NDArray[np.float32]) -> TensorDataset:
    return TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels))
