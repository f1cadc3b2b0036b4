"""Cuts that place edge after edge: Libra (Xie et al., NIPS 2014, as DGL has it) and HDRF (Petroni et al., 2015).

Pure; :mod:`uneven.graph.native` has the same loops compiled, with the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uneven.graph.edge_list import EdgeList, Ids

MOST_PARTS = 64
"""The parts of a vertex are the bits of one word."""

Rule = Callable[[Sequence[float], int, int, int, int], int]
"""Load of each part, the parts of source and of target as bits, their degrees → the part of an edge."""


def stream_order(edges: int, seed: int) -> Ids:
    """The order in which edges are placed: shuffled.

    A stream in an order of traversal sends nearly all of it to one part, since Libra then only chooses among parts that
    have been touched.
    """
    return np.random.default_rng(seed).permutation(np.arange(edges, dtype=np.int32))


def libra(load: Sequence[float], mine: int, theirs: int, own_degree: int, their_degree: int) -> int:
    """Libra's four rules; of equally loaded parts the first.

    least(S) is the part of S with the least load; load counts edges, over the part's share. Neither end placed yet:
    least(all). One is: least(its parts). Both, with parts in common: least(those). Both, none in common: least(parts of
    the end of lower degree; of the target if they are equal), and the other end gets one more copy.
    """
    if not mine or not theirs:
        allowed = mine | theirs or (1 << len(load)) - 1
    else:
        allowed = mine & theirs or (mine if own_degree < their_degree else theirs)
    return min((load[p], p) for p in range(len(load)) if allowed >> p & 1)[1]


def hdrf(load: Sequence[float], mine: int, theirs: int, own_degree: int, their_degree: int) -> int:
    """HDRF's score with λ = 1 and the whole graph's degrees.

    score(p) = g(u, p) + g(v, p) + (most − load(p)) / (1 + most − least), g(u, p) = 2 − deg(u) / (deg(u) + deg(v)) where
    p holds u, else 0. Of equal scores the first.
    """
    part_of = own_degree / (own_degree + their_degree)
    most, least = max(load), min(load)

    def score(p: int) -> float:
        held = (2.0 - part_of) * (mine >> p & 1) + (1.0 + part_of) * (theirs >> p & 1)
        return (most - load[p]) / (1.0 + most - least) + held

    return max(range(len(load)), key=score)


def placed(edges: EdgeList, shares: Sequence[float], order: Ids, rule: Rule) -> Ids:
    """The part of each edge, placed in turn where the rule wants it.

    Args:
        order: edges in the order of the stream.
    """
    degree, held, load = edges.degree().tolist(), [0] * edges.vertices, [0.0] * len(shares)
    step = [1.0 / (share * len(shares)) for share in shares]
    found = np.zeros(len(edges), np.int32)
    stream = edges.ordered(order)
    for edge, u, v in zip(order.tolist(), stream.source.tolist(), stream.target.tolist(), strict=True):
        best = rule(load, held[u], held[v], degree[u], degree[v])
        held[u] |= 1 << best
        held[v] |= 1 << best
        load[best] += step[best]
        found[edge] = best
    return found
