"""Attach ``uneven why`` to a training process: Python imports this file at its start, from a folder on PYTHONPATH.

``uneven why`` copies it into a folder of the run directory, so PYTHONPATH alone names the run. It waits until torch is
there and a process group or an optimizer is used, so other processes pay one failed lookup.
"""

from __future__ import annotations  # an older Python may start a training, and annotations must not end it

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_GROUPS, _OPTIMIZERS = "torch.distributed.distributed_c10d", "torch.optim.optimizer"


class _Watching(importlib.abc.MetaPathFinder):
    """Calls ``uneven.why.start`` right after torch has loaded the modules that it hooks."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in (_GROUPS, _OPTIMIZERS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            try:
                from uneven.why import start
                from uneven.why.unharmed import unharmed
            except ImportError as error:
                print(f"uneven why: not attached, because this Python has no uneven ({error})", file=sys.stderr)
            else:
                unharmed(lambda: start.watch(module))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_HERE = os.path.dirname(os.path.abspath(__file__))


def _hidden_by_this_file() -> None:
    """Run the ``sitecustomize`` that Python would have imported without this folder."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


os.environ["UNEVEN_WHY"] = os.path.dirname(_HERE)
sys.meta_path.insert(0, _Watching())
_hidden_by_this_file()
