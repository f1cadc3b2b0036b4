"""Fit of the curve max(g, a + b x) to a few measured points of each worker."""

from typing import NamedTuple

import numpy as np

from uneven.policy.core.exact import Floats

_PRIOR = 0.3  # prior of a worker's constant part, plus or minus, relative to its time [default]
_LEAST_SLOPE = 0.02  # relative to the mean time per sample, so that no worker gets all samples [default]
_EVIDENCE = 8.0  # variances of one iteration by which a floor must fit better than a line [default]
_BEND = 0.02  # relative gap between floor and line that is tolerated at the points next to the bend [default]


class Points(NamedTuple):
    """Times at some sizes, shape (slots, n), two slots or more; empty ones have size infinity and weight 0."""

    size: Floats
    local_s: Floats
    weight: Floats  # iterations


class Curve(NamedTuple):
    """Γ(x) = max(floor_s, overhead_s + x · per_sample_s) of each worker, shape (n,), after LB-BSP's 2018 poster."""

    floor_s: Floats
    overhead_s: Floats
    per_sample_s: Floats

    def seconds(self, size: Floats) -> Floats:
        """Return Γ(x) in seconds, shape (n,), for sizes of shape (n,)."""
        return np.maximum(self.floor_s, self.overhead_s + self.per_sample_s * size)


def fit(points: Points, spread: Floats) -> Curve:
    """Fit curves by least squares, choosing the most likely place of the bend, or no floor.

    Without any point a worker gets a meaningless curve. ``spread`` (n,) is the relative standard deviation of an
    iteration.
    """
    size, local_s, w = _by_size(points)
    size = np.where(w > 0.0, size, 0.0)
    total = np.maximum(_added(w), 1e-300)
    mean_x, mean_t = np.maximum(_added(w * size) / total, 1e-300), np.maximum(_added(w * local_s) / total, 1e-300)
    # Normalize each worker's axes, so that one prior and one least slope fit fast and slow workers.
    x, t = size / mean_x, local_s / mean_t
    wx, wt = w * x, w * t
    below = np.stack([w, wx, wt, wx * x, wx * t, wt * t])
    for k in range(1, len(w)):
        below[:, k] += below[:, k - 1]  # prefix sums, up to and including point k
    every = below[:, -1:]
    noise = spread * spread
    # Prefix sums give every candidate in one pass: all points, or those right of the bend.
    a, b, error = _line(np.concatenate([every, every - below[:, :-1]], axis=1), noise)
    # Candidate 0 has no floor; candidate k has its first k points on one.
    flat_w, _, flat_t, _, _, flat_tt = below[:, :-1]
    g = flat_t / np.maximum(flat_w, 1e-300)
    error[1:] += np.maximum(flat_tt - g * flat_t, 0.0) + _EVIDENCE * noise
    # A floor counts only if the line crosses it between its last point and the next one.
    bends = (a[1:] + b[1:] * x[:-1] <= g * (1.0 + _BEND)) & (a[1:] + b[1:] * x[1:] >= g * (1.0 - _BEND))
    error[1:] = np.where(bends & (w[1:] > 0.0), error[1:], np.inf)
    best, at = np.argmin(error, axis=0), np.arange(len(noise))
    floor = np.where(best > 0, g[best - 1, at], 0.0)
    return Curve(floor * mean_t, a[best, at] * mean_t, b[best, at] * (mean_t / mean_x))


def _by_size(points: Points) -> tuple[Floats, Floats, Floats]:
    slots, workers = points.size.shape
    # Bends are tried between neighbors, so each worker's points must be in the order of their sizes.
    order = np.argsort(np.ascontiguousarray(points.size.T), axis=1, kind="stable")
    place = (order * workers + np.arange(workers)[:, None]).T.ravel()
    size, local_s, weight = (
        values.ravel()[place].reshape(slots, workers) for values in (points.size, points.local_s, points.weight)
    )
    return size, local_s, weight


def _line(sums: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a, b and the squared error of a + b x, (candidates, n) each, for sums of w, wx, wt, wxx, wxt and wtt."""
    w, x, t, xx, xt, tt = sums
    prior = noise / _PRIOR**2
    xx, least = np.maximum(xx, 1e-300), 1e-300
    a = np.maximum((t * xx - x * xt) / np.maximum((w + prior) * xx - x * x, least), 0.0)
    b = (xt - a * x) / xx
    # A line that is too flat is fitted again with the least slope.
    flat = b < _LEAST_SLOPE
    b = np.where(flat, _LEAST_SLOPE, b)
    a = np.where(flat, np.maximum((t - b * x) / np.maximum(w, least), 0.0), a)
    # The expanded square can come out slightly negative by rounding, so take the maximum.
    error = tt - 2.0 * (a * t + b * xt) + a * a * w + 2.0 * a * b * x + b * b * xx
    return a, b, np.maximum(error, 0.0)


def _added(rows: Floats) -> Floats:
    """Return the sum over the rows, shape (rows, n) → (n,)."""
    found: Floats = rows[0]
    # Row by row: numpy's own order of summation differs between machines, and all ranks must get the same bits.
    for row in rows[1:]:
        found = found + row
    return found
