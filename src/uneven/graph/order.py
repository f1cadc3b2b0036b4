"""An order of the vertices in which neighbours are near, so that a kernel finds their rows in the cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from uneven.graph.cut.base import Ids


def near_first(source: Ids, target: Ids, vertices: int) -> npt.NDArray[np.int64]:
    """The place of each vertex in reverse Cuthill–McKee order; int64 [vertices]."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    ones = np.ones(len(source), np.bool_)
    order = reverse_cuthill_mckee(csr_matrix((ones, (source, target)), shape=(vertices, vertices)))
    place = np.empty(vertices, np.int64)
    place[order] = np.arange(vertices)
    return place
