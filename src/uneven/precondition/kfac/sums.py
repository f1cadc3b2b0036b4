"""Flat sums of second moments, from which a layer's factors are computed.

Each class stores as few numbers as it needs, in a flat buffer of the length ``numbers``. ``add`` adds ``weight`` Σ v vᵀ
over all vectors v in ``seen``; with a bias, a 1 is appended to each. It is linear, so sums of several workers or steps
may be added before ``squares`` builds the matrices, all of one kind in one call: shape (k, side, side) from (k,
numbers). ``side`` includes the column of ones. The matrices may share memory.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

_STRIP = 96  # rows of a symmetric matrix per product, so that about half of it is skipped


class RowSums:
    """The sums over vectors: the lower triangle of Σ v vᵀ in strips, and Σ v.

    Args:
        wide: length of a vector.
        ones: whether to append a 1 to each.
    """

    def __init__(self, wide: int, ones: bool = False) -> None:
        self.side = wide + ones
        self._wide = wide
        self._ones = ones
        strip = max(_STRIP, math.ceil(wide / 16))
        self._edges = [(top, min(top + strip, wide)) for top in range(0, wide, strip)]
        self.numbers = sum((end - top) * end for top, end in self._edges) + (wide + 1) * ones

    def add(self, flat: Tensor, seen: Tensor, weight: float) -> None:
        """Add vectors, shape (vectors, wide)."""
        at = 0
        for top, end in self._edges:
            strip = flat[at : at + (end - top) * end].view(end - top, end)
            strip.addmm_(seen[:, top:end].t(), seen[:, :end], alpha=weight)
            at += (end - top) * end
        if self._ones:
            flat[at:-1].add_(seen.sum(0), alpha=weight)
            flat[-1] += weight * len(seen)

    def squares(self, flat: Tensor) -> Tensor:
        """Return both triangles from the lower ones (k, numbers), shape (k, side, side)."""
        found, at = flat.new_empty(len(flat), self.side, self.side), 0
        for top, end in self._edges:
            strip = flat[:, at : at + (end - top) * end].unflatten(1, (end - top, end))
            found[:, top:end, :end] = strip
            found[:, :top, top:end] = strip[:, :, :top].mT
            at += (end - top) * end
        if self._ones:
            found[:, -1, :-1] = found[:, :-1, -1] = flat[:, at:-1]
            found[:, -1, -1] = flat[:, -1]
        return found


class PatchSums:
    """The sums over the patches of a convolution, by im2col; ``ones`` for a bias."""

    def __init__(
        self, channels: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], ones: bool
    ) -> None:
        self._how = kernel, 1, padding, stride
        self._rows = RowSums(channels * kernel[0] * kernel[1], ones)
        self.side = self._rows.side
        self.numbers = self._rows.numbers
        self.squares = self._rows.squares

    def add(self, flat: Tensor, seen: Tensor, weight: float) -> None:
        """Add images, shape (samples, channels, height, width)."""
        patches = F.unfold(seen, *self._how).transpose(1, 2)
        self._rows.add(flat, patches.reshape(-1, patches.shape[2]), weight)


class PixelSums:
    """The sums over pixels, for 1 × 1 convolutions and output gradients; ``ones`` for a bias."""

    def __init__(self, channels: int, stride: tuple[int, int] = (1, 1), ones: bool = False) -> None:
        self.side = channels + ones
        self._channels = channels
        self._stride = stride
        self._ones = ones
        self.numbers = channels**2 + (channels + 1) * ones

    def add(self, flat: Tensor, seen: Tensor, weight: float) -> None:
        """Add images, shape (samples, channels, height, width)."""
        seen = seen[:, :, :: self._stride[0], :: self._stride[1]]
        square = _correlated(seen, seen, (1, 1))
        flat[: self._channels**2].add_(square.view(-1), alpha=weight)
        if self._ones:
            flat[self._channels**2 : -1].add_(seen.sum((0, 2, 3)), alpha=weight)
            flat[-1] += weight * seen.shape[0] * seen.shape[2] * seen.shape[3]

    def squares(self, flat: Tensor) -> Tensor:
        """Return the matrices (k, side, side) of sums (k, numbers)."""
        inner = flat[:, : self._channels**2].unflatten(1, (self._channels, self._channels))
        return _bordered(inner, flat[:, self._channels**2 :]) if self._ones else inner


class AutoSums:
    """The sums over the patches of a 3 × 3 convolution of stride 1 and padding 1, from autocorrelations; exact.

    The product of two pixels of a patch, x[c, p + d] x[c', p + d'], depends on p and on d' − d. So its sum over p is
    the image's autocorrelation at the distance d' − d, minus the products with p outside of the image: a border line if
    both pixels are beyond one side, a corner if beyond two. This takes 15 C² multiplications per position instead of 81
    C², and no buffer of patches. kfac-jax has it for TPUs (``patches_second_moment``).
    """

    def __init__(self, channels: int, ones: bool) -> None:
        c = self._channels = channels
        self._ones = ones
        self.side = 9 * c + ones
        self._sizes = (15 * c * c, 12 * c * c, 4 * c * c) + ((c, 4 * c, 4 * c, 1) if ones else ())
        self.numbers = sum(self._sizes)

    def add(self, flat: Tensor, seen: Tensor, weight: float) -> None:
        """Add images, shape (samples, channels, height, width)."""
        c, parts = self._channels, flat.split(self._sizes)
        # 15 of the 25 distances; the others are transposes.
        whole = _correlated(F.pad(seen, (2, 2, 0, 2)), seen, (3, 5))
        lines = (seen[:, :, 0], seen[:, :, -1], seen[:, :, :, 0], seen[:, :, :, -1])  # top, bottom, left, right
        corners = torch.stack([seen[:, :, y, x] for y in (0, -1) for x in (0, -1)])  # (4, samples, c)
        parts[0].add_(whole.view(-1), alpha=weight)
        # Lines of equal length share one call.
        square = seen.shape[2] == seen.shape[3]
        for place, group in ((0, lines),) if square else ((0, lines[:2]), (6 * c * c, lines[2:])):
            both = torch.cat(group, 1)[:, :, None]
            found = _correlated(F.pad(both, (0, 2)), both, (1, 3), len(group)).reshape(-1)
            parts[1][place : place + len(found)].add_(found, alpha=weight)
        parts[2].add_(torch.bmm(corners.transpose(1, 2), corners).view(-1), alpha=weight)
        if self._ones:
            parts[3].add_(seen.sum((0, 2, 3)), alpha=weight)
            parts[4].add_(torch.cat([one.sum((0, 2)) for one in lines]), alpha=weight)
            parts[5].add_(corners.sum(1).view(-1), alpha=weight)
            parts[6].add_(float(seen.shape[0] * seen.shape[2] * seen.shape[3]), alpha=weight)

    def squares(self, flat: Tensor) -> Tensor:
        """Return the matrices (k, side, side) of sums (k, numbers), ordered as ``weight.view(out, -1)``: channel, row,
        column; then the 1."""
        parts = flat.split(self._sizes, 1)
        k = len(flat)
        c = self._channels
        whole = parts[0].reshape(k, c, c, 15).permute(3, 0, 1, 2)
        lines = parts[1].reshape(k, 4, c, c, 3).permute(1, 4, 0, 2, 3).reshape(12, k, c, c)
        corners = parts[2].reshape(k, 4, c, c).transpose(0, 1)
        sums = torch.cat([whole, lines, corners, whole.mT, lines.mT])
        found = _assembled(sums, _blocks(flat.device)).view(9, 9, k, c, c)
        inner = found.permute(2, 3, 0, 4, 1).reshape(k, 9 * c, 9 * c)
        if not self._ones:
            return inner
        pixels = torch.cat(parts[3:6], 1).view(k, 9, c).transpose(0, 1)
        edge = _assembled(pixels, _borders(flat.device)).permute(1, 2, 0).reshape(k, 9 * c)
        return _bordered(inner, torch.cat([edge, parts[6]], 1))


Sums = RowSums | PatchSums | PixelSums | AutoSums


def _bordered(inner: Tensor, edge: Tensor) -> Tensor:
    """Append to symmetric matrices, shape (k, n, n), a last row and column, shape (k, n + 1)."""
    return torch.cat([torch.cat([inner, edge[:, None, :-1]], 1), edge[:, :, None]], 2)


_Terms = Sequence[tuple[float, Tensor, Tensor]]
"""Sign, positions in the result, and the sums that go there; few calls, because launches dominate on accelerators."""


def _assembled(sums: Tensor, terms: _Terms) -> Tensor:
    """Combine signed sums; the first term has one for each position."""
    (_, _, first), *others = terms
    found = sums[first]
    for sign, at, which in others:
        found.index_add_(0, at, sums[which], alpha=sign)
    return found


def _terms(device: torch.device, *terms: tuple[float, dict[int, int]]) -> _Terms:
    def on_it(numbers: Iterable[int]) -> Tensor:
        return torch.tensor([*numbers], device=device)

    return [(sign, on_it(places.keys()), on_it(places.values())) for sign, places in terms]


@functools.cache
def _blocks(device: torch.device) -> _Terms:
    """Return the sums that make up the second moment of each pair of pixels of a patch.

    These are the autocorrelation at their distance, minus the lines if both are beyond a side, plus the corner that was
    subtracted twice. There are 31 sums: 15 of the image, 3 of each line (top, bottom, left, right), 4 corners; then the
    transposes of the first 27.
    """
    turned, at_lines, at_corners = 31, 15, 27

    def along(line: int, far: int) -> int:
        return at_lines + 3 * line + far if far >= 0 else turned + at_lines + 3 * line - far

    whole, above, beside, corners = {}, {}, {}, {}
    for place, (y, x, y2, x2) in enumerate(itertools.product(range(3), repeat=4)):
        down, right = y2 - y, x2 - x
        whole[place] = 5 * down + right + 2 if down >= 0 else turned - 5 * down + 2 - right
        if y == y2 != 1:
            above[place] = along(1 - y // 2, right)
        if x == x2 != 1:
            beside[place] = along(3 - x // 2, down)
        if y == y2 != 1 and x == x2 != 1:
            corners[place] = at_corners + 2 * (1 - y // 2) + 1 - x // 2
    return _terms(device, (1.0, whole), (-1.0, above), (-1.0, beside), (1.0, corners))


@functools.cache
def _borders(device: torch.device) -> _Terms:
    """Return the same for single pixels: of 9 sums, that of the image, 4 lines, 4 corners."""
    whole, above, beside, corners = {}, {}, {}, {}
    for place, (y, x) in enumerate(itertools.product(range(3), repeat=2)):
        whole[place] = 0
        if y != 1:
            above[place] = 1 + 1 - y // 2
        if x != 1:
            beside[place] = 1 + 3 - x // 2
        if y != 1 and x != 1:
            corners[place] = 5 + 2 * (1 - y // 2) + 1 - x // 2
    return _terms(device, (1.0, whole), (-1.0, above), (-1.0, beside), (1.0, corners))


def _correlated(images: Tensor, seen: Tensor, kernel: tuple[int, int], groups: int = 1) -> Tensor:
    """Return Σ seen[c, p] images[c', p + d] over samples and positions, shape (c, c' of the group, *kernel)."""
    wide = images.shape[1] // groups
    # It is the weight gradient of a convolution, for which torch has fast kernels.
    return conv2d_weight(images, (seen.shape[1], wide, *kernel), seen, groups=groups)
