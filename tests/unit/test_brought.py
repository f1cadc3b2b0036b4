"""The marks of inputs that users bring."""

import pytest

import brought
from uneven.errors import DataError


def test_a_row_is_what_its_test_has_shown(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(brought.brought("graphs", "PyG", "x", refused=True))
    with pytest.raises(AssertionError, match="disagree"), brought.judged(request.node):
        pass
    with brought.judged(request.node), brought.refusal("way out"):
        raise DataError("the way out")
