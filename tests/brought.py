"""Marks the tests of inputs that users of other tools bring. Each mark is one row of docs/how-to/inputs/.

::

    @brought("graphs", "PyG", "`Data` with `edge_weight`")
    def test_…():                                    # passes only if the result is the peer's, or that of one process

    @brought("graphs", "PyG", "`HeteroData`", refused=True)
    def test_…():
        with refusal("to_homogeneous"):              # passes only if an error of uneven names the way out
            …

A case of ``parametrize`` takes the same mark: ``pytest.param(…, marks=brought(…))``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from uneven.errors import UnevenError

KINDS = ("logs", "tables", "graphs", "losses", "searches", "videos", "second order", "loops")
"""One page for each."""

_refused: list[str] = []


def brought(kind: str, peer: str, what: str, *, refused: bool = False) -> pytest.MarkDecorator:
    """Mark a test as a row of the page.

    Args:
        kind: one of :data:`KINDS`.
        peer: the tool whose users bring this.
        what: the input, in Markdown.
        refused: whether uneven refuses it; the test then uses :func:`refusal`.
    """
    assert kind in KINDS, kind
    return pytest.mark.brought(kind, peer, what, refused)


@contextmanager
def refusal(match: str) -> Iterator[None]:
    """Expect an error of uneven whose message matches, a regular expression."""
    with pytest.raises(UnevenError) as caught:
        yield
    assert re.search(match, str(caught.value)), f"{match!r} is not in: {caught.value}"
    _refused.append(match)


@contextmanager
def judged(item: pytest.Item) -> Iterator[None]:
    """Run a marked test inside; raise an error if it passes without having shown what its row says."""
    _refused.clear()
    yield
    for mark in item.iter_markers("brought"):
        assert mark.args[3] == bool(_refused), f"{mark.args[2]}: the mark and the calls of refusal() disagree"
