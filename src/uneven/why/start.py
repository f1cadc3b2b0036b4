"""The start of the measurement in a worker: once torch is loaded, at the first process group or optimizer step."""

import os
import threading
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from uneven.runtime.system import in_forks
from uneven.why.unharmed import unharmed

if TYPE_CHECKING:
    from uneven.why.probe import Probe

RUN_VARIABLE = "UNEVEN_WHY"  # the run directory for the journals of all workers; ``why.boot`` sets it

_lock = threading.Lock()
_probe: "Probe | None" = None
_hooked = False
_tried = False  # to attach to a script that knows nothing of it


def watch(module: ModuleType) -> None:
    """Call :func:`attach` when a script first uses this module of torch."""
    if module.__name__.endswith("distributed_c10d"):
        original = module.init_process_group

        @wraps(original)
        def init_process_group(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            _attach_to_the_script()
            return result

        module.init_process_group = init_process_group  # type: ignore[attr-defined]
    else:
        _hook_optimizers(module)


def _in_a_fork() -> None:
    if _probe is not None:
        _probe.forget()


in_forks(_in_a_fork)


def _hook_optimizers(module: ModuleType) -> None:
    """Pass all optimizer steps of this process to its probe. The hooks stay, because torch may be iterating over
    them when the measurement ends."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    module.register_optimizer_step_pre_hook(_before_optimizer)
    module.register_optimizer_step_post_hook(_after_optimizer)


def _attach_to_the_script() -> None:
    """Attach once: a torch that lacks something still lacks it at the next opportunity."""
    global _tried
    if not _tried and RUN_VARIABLE in os.environ:
        _tried = True
        unharmed(attach)


def _before_optimizer(optimizer: Any, *_: Any) -> None:
    if _probe is None:
        _attach_to_the_script()
    if _probe is not None:
        _probe.before_optimizer(optimizer)


def _after_optimizer(optimizer: Any, *_: Any) -> None:
    if _probe is not None:
        _probe.after_optimizer(optimizer)


def attach(run: str | Path | None = None) -> "Probe":
    """Measure this worker's steps from here on, for ``uneven why RUN``.

    Call it once on each worker, after ``init_process_group``; further calls return the same measurement, until its
    ``close()``.

    Args:
        run: the run directory, the same for all workers. [default: the variable UNEVEN_WHY]

    Raises:
        ConfigError: no directory is given.
        JournalError: the journal cannot be written there.

    Example::

        torch.distributed.init_process_group("gloo")
        uneven.why.attach("runs/mine")
    """
    from torch.optim import optimizer

    from uneven.errors import ConfigError
    from uneven.why.probe import Probe

    global _probe
    where = run or os.environ.get(RUN_VARIABLE)
    if not where:
        raise ConfigError(f"uneven.why.attach: name a run directory, or set {RUN_VARIABLE}")
    _hook_optimizers(optimizer)
    with _lock:
        if _probe is None or not _probe.measures:
            _probe = Probe.start(Path(where))
        return _probe
