"""Start workers through torch's own elastic launcher, which ends all when one dies that they cannot do without.

:func:`run` is the launcher itself and stays until the workers have ended; :func:`start` runs it in a process of its
own, for a program that wants to go on meanwhile (the demo, the benchmarks). torch is imported only when workers are
started.
"""

from uneven.launch.local import LocalRun, run, start
from uneven.launch.output import WorkerOutput
from uneven.launch.spec import Launch

__all__ = ["Launch", "LocalRun", "WorkerOutput", "run", "start"]
