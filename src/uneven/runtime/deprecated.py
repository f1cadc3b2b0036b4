"""Deprecated names: they work for one more minor version, with a warning."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from uneven.errors import ConfigError, UnevenDeprecationWarning
from uneven.runtime.frames import warn

Call = TypeVar("Call", bound=Callable[..., Any])


def renamed(until: str, **names: str) -> Callable[[Call], Call]:
    """Let a function accept arguments by their old names, with a warning::

        @renamed("0.4", batch_size="global_batch_size")
        def loader(self, dataset, *, global_batch_size): ...

    Args:
        until: the version that no longer has the old names.
        names: old name → new name.
    """

    def wrap(call: Call) -> Call:
        @functools.wraps(call)
        def called(*given: Any, **named: Any) -> Any:
            for old in names.keys() & named.keys():
                new = names[old]
                if new in named:
                    raise ConfigError(f"{call.__name__}: {old} is the old name of {new}; give one of them")
                warn(f"{call.__name__}: {old} is now {new}; version {until} removes it", UnevenDeprecationWarning)
                named[new] = named.pop(old)
            return call(*given, **named)

        return called  # type: ignore[return-value] # the same arguments, and the old names

    return wrap
