"""The rows of a batch, as a model receives them: pooled, or one for each id."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.embedding.pure.route import BatchIds, Router


class PooledFeatures:
    """The pooled rows of a batch: one row per bag, for every feature. A subset of TorchRec's ``KeyedTensor``.

    Args:
        columns: name of a feature → its columns in ``values``.
        values: the rows of all features, concatenated; shape (batch, sum of their dims).
    """

    def __init__(self, columns: dict[str, slice], values: Tensor) -> None:
        self._columns = columns
        self._values = values

    def values(self) -> Tensor:
        """Return the pooled rows of all features, concatenated; shape (batch, sum of their dims)."""
        return self._values

    def keys(self) -> list[str]:
        """Return the names of the features."""
        return list(self._columns)

    def __getitem__(self, feature: str) -> Tensor:
        """Return the pooled rows of one feature; shape (batch, dim)."""
        return self._values[:, self._columns[feature]]

    def to_dict(self) -> dict[str, Tensor]:
        """Return feature → pooled rows, shape (batch, dim)."""
        return {name: self[name] for name in self._columns}


class UnpooledFeatures(dict[str, Tensor]):
    """Feature → the rows of its ids, bag by bag, shape (ids, dim), or (batch, n, dim) for ids (batch, features, n).

    :meth:`nested` and :meth:`padded` return them as sequences, for attention: a bag is a sequence, in its order.

    Args:
        values: the rows of all features, shape (bags, sum of their dims); a bag is one id.
        ids: of these bags, a result of :func:`~uneven.embedding.pure.route.apart`.
        router: of the tables.
        even: whether all bags have the same number of ids.
    """

    def __init__(self, values: Tensor, ids: BatchIds, router: Router, *, even: bool = False) -> None:
        many, batch = ids.sizes.sum(0), len(ids.lengths_before)
        found = {name: values[:n, columns] for n, (name, columns) in zip(many, router.columns.items(), strict=True)}
        super().__init__(
            {name: one.unflatten(0, (batch, len(one) // max(batch, 1))) for name, one in found.items()}
            if even
            else found
        )
        self._ids = ids
        self._router = router

    def nested(self, feature: str) -> Tensor:
        """Return the rows of one feature as a nested tensor (batch, ragged, dim) with the jagged layout.

        Ids that mean "no id" are left out.
        """
        rows, there, lengths = self._sequences(feature)
        left = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[there], minlength=len(lengths))
        offsets = torch.from_numpy(np.cumsum([0, *left])).to(rows.device)
        found: Tensor = torch.nested.nested_tensor_from_jagged(rows[torch.from_numpy(there).to(rows.device)], offsets)
        return found

    def padded(self, feature: str) -> tuple[Tensor, Tensor]:
        """Return the rows of one feature, shape (batch, longest, dim), and a mask (batch, longest), True for its ids.

        Each bag begins at 0. Ids that mean "no id" keep their place, outside of the mask. Rows outside of it are 0.
        """
        rows, there, lengths = self._sequences(feature)
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        places = torch.from_numpy(mask.copy()).to(rows.device)
        mask[mask] = there
        out = rows.new_zeros(*places.shape, rows.shape[1]).index_put((places,), rows)
        return out, torch.from_numpy(mask).to(rows.device)

    def _sequences(self, feature: str) -> tuple[Tensor, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return all rows (n, dim), which of them have an id (n,), and the lengths of the bags (batch,)."""
        rows, ids, place = self[feature].flatten(0, -2), self._ids, list(self).index(feature)
        there = ~self._router.absent(ids)[ids.bag_of % ids.features == place]
        return rows, there, ids.lengths_before[:, place]
