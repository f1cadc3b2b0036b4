"""Damaged plain data: what ``uneven bench mutations`` makes of it, as far as it can still be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from uneven_bench.mutations.make import documents


def damaged(whole: Any, seed: int) -> Iterator[Any]:
    """Nested lists and dictionaries without end, each with something in it changed; the same for the same seed."""
    text = json.dumps(whole)
    for document in documents(seed, [text.encode()], json=True):
        with suppress(ValueError, RecursionError):
            data = json.loads(document)
            if json.dumps(data) != text:
                yield data
