"""Cuts that place edge after edge: Libra (Xie et al., NIPS 2014, as DGL has it) and HDRF (Petroni et al., 2015).

Pure; :mod:`uneven.graph.native` has the same loops compiled, with the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uneven.errors import ConfigError
from uneven.graph.cut.base import Ids

MOST_PARTS = 64
"""The parts of a vertex are the bits of one word."""


def check_parts(parts: int) -> None:
    """Raises ConfigError for more parts than a word has bits."""
    if parts > MOST_PARTS:
        raise ConfigError(f"{parts} parts: libra and hdrf cut into at most {MOST_PARTS}; use method='ne' or 'dbh'")


def stream_order(edges: int, seed: int | None) -> Ids:
    """The order in which edges are placed: shuffled, or as given for None.

    A stream in an order of traversal sends nearly all of it to one part, since Libra then only chooses among parts that
    have been touched.
    """
    number: Ids = np.arange(edges, dtype=np.int32)
    return number if seed is None else np.random.default_rng(seed).permutation(number)


def libra(source: Ids, target: Ids, vertices: int, shares: Sequence[float], order: Ids) -> Ids:
    """The part of each edge, by Libra's four rules; of equally loaded parts the first.

    least(S) is the part of S with the least load; load counts edges, over the part's share. Neither end placed yet:
    least(all). One is: least(its parts). Both, with parts in common: least(those). Both, none in common: least(parts of
    the end of lower degree; of the target if they are equal), and the other end gets one more copy.

    Args:
        order: edges in the order of the stream.
    """
    degree = (np.bincount(source, minlength=vertices) + np.bincount(target, minlength=vertices)).tolist()
    parts = len(shares)
    check_parts(parts)
    load, held, everywhere = [0.0] * parts, [0] * vertices, (1 << parts) - 1
    found = np.zeros(len(source), np.int32)
    step = [1.0 / (share * parts) for share in shares]
    for edge, u, v in zip(order.tolist(), source[order].tolist(), target[order].tolist(), strict=True):
        mine, theirs = held[u], held[v]
        if not mine or not theirs:
            allowed = mine | theirs or everywhere
        else:
            allowed = mine & theirs or (mine if degree[u] < degree[v] else theirs)
        best = min((load[p], p) for p in range(parts) if allowed >> p & 1)[1]
        held[u] |= 1 << best
        held[v] |= 1 << best
        load[best] += step[best]
        found[edge] = best
    return found


def hdrf(source: Ids, target: Ids, vertices: int, shares: Sequence[float], order: Ids) -> Ids:
    """The part of each edge, by HDRF's score with λ = 1 and the whole graph's degrees.

    score(p) = g(u, p) + g(v, p) + (most − load(p)) / (1 + most − least), g(u, p) = 2 − deg(u) / (deg(u) + deg(v)) where
    p holds u, else 0. Of equal scores the first.
    """
    degree = (np.bincount(source, minlength=vertices) + np.bincount(target, minlength=vertices)).tolist()
    parts = len(shares)
    check_parts(parts)
    load, held = [0.0] * parts, [0] * vertices
    found = np.zeros(len(source), np.int32)
    step = [1.0 / (share * parts) for share in shares]
    for edge, u, v in zip(order.tolist(), source[order].tolist(), target[order].tolist(), strict=True):
        mine, theirs = held[u], held[v]
        part_of = degree[u] / (degree[u] + degree[v])
        most, least = max(load), min(load)
        best, best_score = 0, -1.0
        for p in range(parts):
            score = (most - load[p]) / (1.0 + most - least)
            score += (2.0 - part_of) * (mine >> p & 1) + (1.0 + part_of) * (theirs >> p & 1)
            if score > best_score:
                best, best_score = p, score
        held[u] |= 1 << best
        held[v] |= 1 << best
        load[best] += step[best]
        found[edge] = best
    return found
