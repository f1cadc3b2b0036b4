"""Every description that comes with uneven is read."""

import pytest

from uneven.cluster import files


@pytest.mark.parametrize("name", files.shipped())
def test_what_is_shipped_is_read(name: str) -> None:
    assert files.load(name).name == name
