"""Supervised processes: started, listened to, classified by how they end, and never left behind.

::

    command.py    a program ──────────────────────┐                 ┌── ending.py   ended, failed, killed, hung or lost
    call.py       a function, with a connection ──┼──► a Process ──►┤
    ray.py        the same on a Ray cluster ──────┘       │         └── restart.py  restarted, under a rule
                                                          ▼
                  job_events.py: one loop receives ends, messages, heartbeats and anything else that is readable

    ray_lines.py     programs on a Ray cluster, restarted when a machine is lost
    executor.py      the machines and devices of functions: engines.py, ray.py
    parent_death.py  a program ends with its parent process, however that ends
"""

from uneven.runtime.jobs.command import Command, end_all
from uneven.runtime.jobs.ending import Ending, How, Stop
from uneven.runtime.jobs.job_events import Events
from uneven.runtime.jobs.restart import Kept, Restarts

__all__ = ["Command", "Ending", "Events", "How", "Kept", "Restarts", "Stop", "end_all"]
