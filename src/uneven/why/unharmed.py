"""Calls whose failure must not reach a training that is not ours."""

import sys
from collections.abc import Callable


def unharmed(action: Callable[..., object], *args: object) -> bool:
    """Run an action and return whether it succeeded; if it fails, print one line instead of raising."""
    try:
        action(*args)
    except Exception as error:  # noqa: BLE001 (any, see above)
        print(f"uneven why: switched off ({type(error).__name__}: {error})", file=sys.stderr)
        return False
    return True
