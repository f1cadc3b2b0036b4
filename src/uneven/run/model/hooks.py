"""Hooks on the user's model that belong to one session and are not copied with the model.

Averaged models (``copy.deepcopy``) and saved ones (``torch.save(model)``) would include the hooks. But a copy must
exchange nothing, and a reader of the file may not have this package. So ``copyreg``, which ``pickle`` and ``copy`` both
use, gets a function that leaves our hooks out of the state.
"""

import copyreg
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

# Attributes with a module's hooks, and with how to call them; all by the number of the hook.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ABOUT_HOOKS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")

_lock = threading.RLock()  # a finalizer may run while its own thread holds it
_users: Counter[type] = Counter()
_others: dict[type, Callable[[Any], Any] | None] = {}  # copyreg's earlier functions for these classes


@_disable_dynamo  # the public torch.compiler.disable imports all of torch.compile
def _uncompiled(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return call(*args, **kwargs)


class ModelHook:
    """Calls ``call``; in a copy of the model it does nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a model compiled after setup keeps its hooks
            return _uncompiled(self._call, args, kwargs)
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # Only a class that copies itself, as parametrized modules do, copies a hook too. Python has no function that
        # does nothing; this one takes any arguments, does next to nothing, and can be unpickled everywhere.
        return partial, (sys.audit, "uneven.copy_of_a_hook")


class Undo:
    """Undoes an owner's changes to the user's objects, when called or when the owner is garbage-collected."""

    def __init__(self, owner: object) -> None:
        self._calls: list[Callable[[], object]] = []  # must not refer to the owner, or it would never be collected
        self._end = weakref.finalize(owner, _call_all, self._calls)
        self._end.atexit = False

    def add(self, *calls: Callable[[], object]) -> None:
        self._calls += calls

    def __call__(self) -> None:
        self._end()


def _call_all(calls: list[Callable[[], object]]) -> None:
    for one in calls:
        one()
    calls.clear()


def keep_out_of_copies(model: nn.Module) -> Callable[[], object]:
    """Leave the current hooks of ``model`` and its layers out of copies; return the function that ends this."""
    kinds = {type(module) for module in model.modules() if _ours(vars(module))}
    with _lock:
        for kind in kinds:
            if not _users[kind]:
                _others[kind] = copyreg.dispatch_table.get(kind)
                copyreg.pickle(kind, _reduce)
            _users[kind] += 1
    end = weakref.finalize(model, _let_go, kinds)
    end.atexit = False
    return end


def _let_go(kinds: set[type]) -> None:
    with _lock:
        for kind in kinds:
            _users[kind] -= 1
            if not _users[kind]:
                del _users[kind], copyreg.dispatch_table[kind]
                if (other := _others.pop(kind)) is not None:
                    copyreg.dispatch_table[kind] = other


def _reduce(module: nn.Module) -> tuple[Any, ...]:
    other = _others.get(type(module))
    return _without_ours(other(module) if other is not None else module.__reduce_ex__(2))


def _without_ours(what: Any) -> Any:
    """Return a module's state, or a tuple that holds one, without our hooks."""
    if type(what) is tuple:
        return tuple(map(_without_ours, what))
    if not isinstance(what, dict) or not (ours := _ours(what)):
        return what
    kept = dict(what)
    for name in (*_HOOKS, *_ABOUT_HOOKS):
        if ours & kept.get(name, {}).keys():
            kept[name] = type(kept[name])((key, hook) for key, hook in kept[name].items() if key not in ours)
    return kept


def _ours(state: dict[str, Any]) -> set[int]:
    """Return the numbers of our hooks in a module's state."""
    return {key for name in _HOOKS for key, hook in state.get(name, {}).items() if isinstance(hook, ModelHook)}
