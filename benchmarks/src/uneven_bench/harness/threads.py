"""The threads of torch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int = 1) -> Iterator[None]:
    """Limit torch to so many threads: those that wait for each other would count as processor time."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
