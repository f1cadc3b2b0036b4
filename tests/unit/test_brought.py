"""The marks of inputs that users bring, and the page that they write."""

import subprocess
import sys

import pytest

import brought
import brought_page
from uneven.errors import DataError


def test_a_row_is_what_its_test_has_shown(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(brought.brought("graphs", "PyG", "x", refused=True))
    with pytest.raises(AssertionError, match="disagree"), brought.judged(request.node):
        pass
    with brought.judged(request.node), brought.refusal("way out"):
        raise DataError("the way out")


def test_the_page_has_the_rows_of_the_tests() -> None:
    asked = subprocess.run([sys.executable, brought_page.__file__, "--check"], capture_output=True, text=True)
    assert not asked.returncode, asked.stderr
