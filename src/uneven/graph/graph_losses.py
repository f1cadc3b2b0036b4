"""Split a criterion into a sum over rows and the divisor of torch's mean. Both add up over workers.

The divisor is the criterion's sum over its mean, at outputs where no loss is 0. So class weights, ignored labels,
several numbers per vertex and ``batchmean`` need no special cases.
"""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError, DataError

Criterion = Callable[..., Tensor]

_BY_CLASS = ("cross_entropy", "nll_loss", "multi_margin_loss", "CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")
_OUTPUT = 0.37  # in the domain of all torch criteria: valid as logit, probability and number


def mask_of(rows: int, mask: Tensor, output: Tensor, y: Tensor) -> Tensor:
    """Return the mask as bool (rows,); raise :class:`DataError` if outputs (rows, ...) or labels do not match."""
    mask = torch.as_tensor(mask)
    if mask.dtype is not torch.bool or mask.shape not in ((rows,), (rows, 1)):
        way = "mask.bool(), or mask[:, 0] of several columns"
        if mask.dim() == 1 and len(mask) != rows:  # indices are of the whole graph
            way = "g.tensor('train_mask') of partition(tensors=…); indices become it by zeros(N).index_fill(0, at, 1)"
        raise DataError(f"a mask of {mask.dtype} and shape {tuple(mask.shape)}: give bool [{rows}], such as {way}")
    for what, one in (("outputs", output), ("labels", y)):
        if one.shape[:1] != (rows,):
            raise DataError(f"{what} of shape {tuple(one.shape)}: give the rows of this part, {rows} rows")
    return mask.view(rows)


class SplitLoss:
    """A criterion split into sum and divisor; raises :class:`ConfigError` for unsupported reductions."""

    def __init__(self, criterion: Criterion) -> None:
        inner: Any = criterion
        while isinstance(inner, partial):
            inner = inner.func
        self._name = getattr(inner, "__name__", type(inner).__name__)
        self._torch = getattr(inner, "__module__", "") in ("torch.nn.functional", "torch.nn.modules.loss")
        self._torch &= not inspect.ismethod(inner)  # criterion.forward
        if isinstance(inner, nn.Module):
            options = vars(inner)
        else:
            options = {name: one.default for name, one in inspect.signature(criterion).parameters.items()}
        self._reduction = options.get("reduction")
        if self._reduction is inspect.Parameter.empty:
            criterion = partial(criterion, reduction="mean")
            self._reduction = "mean"
        self._criterion = criterion
        self.summed = self._reduction == "sum"
        if self._reduction == "none" or (options.get("size_average"), options.get("reduce")) != (None, None):
            raise ConfigError(f"g.loss: {self._name} with reduction='none', size_average= or reduce=: leave them out")

    def whole(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the criterion's value, a scalar, for outputs and labels (n, ...); raise an error for other shapes."""
        dims = output.dim() - (self._name in _BY_CLASS and not y.is_floating_point())
        if self._torch and y.dim() != dims:  # torch would broadcast, and compare each row with all others
            way = "None" if y.dim() < dims else "0"
            way = f"give labels of {dims} dimensions, such as y[:, {way}]; classes are whole numbers, y.long()"
            raise DataError(f"g.loss: {self._name} of outputs {tuple(output.shape)}, labels {tuple(y.shape)}: {way}")
        found = self._criterion(output, y)
        if not isinstance(found, Tensor) or found.numel() != 1:
            given = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"g.loss: {self._name} returns {given}: return one number, the mean")
        return found

    def sum(self, output: Tensor, y: Tensor, reduction: str = "sum") -> Tensor:
        """Return the sum over rows (n, ...), a scalar with gradient."""
        if not isinstance(self._criterion, nn.Module):
            return self._criterion(output, y, reduction=reduction)
        found: Any = copy.copy(self._criterion)  # the user's module keeps its reduction
        found.reduction = reduction
        return found(output, y)

    def divisor(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the divisor of the mean over rows (n, ...): a float64 scalar; 0 without rows."""
        with torch.no_grad():
            output = torch.full_like(output, _OUTPUT, dtype=torch.promote_types(output.dtype, torch.float32))
            total, mean = self.sum(output, y).double(), self.whole(output, y).double()
            if mean == 0.0:  # all weights are 0; torch counts these rows
                return torch.tensor(self.sum(output, y, "none").numel(), dtype=torch.float64)
            return (total / mean).nan_to_num()  # 0 / 0 if all are ignored

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ConfigError unless a user's function of these rows (n, ...) is the sum over their two halves."""
        if not isinstance(self._reduction, str):
            raise ConfigError(
                f"g.loss: {self._name} does not take reduction=, so its mean covers this worker's vertices only: "
                "give a function that takes reduction='mean' and 'sum', such as functools.partial(F.cross_entropy, "
                "ignore_index=-1)"
            )
        if self._torch or not len(y) or not output.isfinite().all():
            return
        with torch.no_grad():
            every = torch.arange(len(y)).repeat(2)[: max(2, len(y))]  # at least two rows, to split
            found = [(output[rows], y[rows]) for rows in (every, *every.tensor_split(2))]
            (total, one, two), over = [self.sum(*it) for it in found], [self.divisor(*it) for it in found]
            mean = total if self.summed else self.whole(*found[0]) * over[0]
        off = 1e3 * torch.finfo(output.dtype).eps
        pairs = ((total, one, two), (over[0], over[1], over[2]), (total, mean, 0.0 * mean))
        if not all(abs(a - b - c) <= off * (abs(b) + abs(c)) for a, b, c in pairs):
            raise ConfigError(
                f"g.loss: {self._name} is not a sum over vertices divided by a number that depends on labels alone, "
                "so workers cannot compute parts of it: give such a loss"
            )
