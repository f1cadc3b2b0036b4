"""Tests on several real processes get a second try, and the report counts every one that needed it.

What they ask for depends on the machine as well: a connection to torch's store takes five seconds now and then, two
processes write one line at once. A defect fails twice.
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/ranks/" in item.nodeid or "tests/examples/" in item.nodeid:
            item.add_marker(pytest.mark.flaky(reruns=1))
