"""What an update holds is known to the store before anything of the update is sent."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import HashStore

from uneven.run.samples.async_sampling.leased_samples import LeasedSamples
from uneven.run.samples.async_sampling.session_store import SessionStore


class Asked:
    """A store that writes down what it is asked, as one behind a connection is, which answers no write."""

    def __init__(self, store: Any) -> None:
        self._store, self.calls = store, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.calls.append(name)
            return getattr(self._store, name)(*given)

        return call


def test_an_update_begins_when_its_note_is_there() -> None:
    store = SessionStore(0, 1, HashStore())
    asked = store._store = Asked(store._store)  # type: ignore[assignment]
    claims = LeasedSamples(store, 1.0, ahead=False, members=(0,), tend=lambda: True, there=lambda: (0,))
    asked.calls.clear()
    claims.gives(1)
    assert asked.calls == ["set", "check"]  # the answer to the second shows that the first is done
    claims.aside(True)
    assert asked.calls[2:] == ["set"]  # nothing hangs on it
