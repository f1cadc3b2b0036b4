"""Hooks on the user's model that belong to one session and do not follow copies of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ModelHook:
    """Calls ``call``; in a copy of the model it does nothing.

    Averaged models (``copy.deepcopy``) and saved ones (``torch.save(model)``) take their hooks along. A copy
    is nobody's replica: its forward passes must exchange nothing.
    """

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs) if self._call is not None else None

    def __reduce__(self) -> tuple[type[ModelHook], tuple[()]]:
        return ModelHook, ()  # serves copy.deepcopy and pickle alike
