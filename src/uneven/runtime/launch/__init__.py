"""Start workers with torchrun's options and environment; all end when an indispensable one dies.

:func:`run` launches and waits for the workers; :func:`start` does the same in a separate process. torch is imported
only when workers are started.
"""

from uneven.runtime.launch.launch_spec import Launch
from uneven.runtime.launch.local_launch import run, start
from uneven.runtime.launch.output import WorkerOutput

__all__ = ["Launch", "WorkerOutput", "run", "start"]
