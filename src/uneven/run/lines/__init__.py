"""Lines: the connections of a component to the same component on other workers.

A line has a name and its own process group, so messages on two lines never mix. Lines implement waiting, the roll call
of missing workers, time-outs and byte counts.
"""

from uneven.run.lines.group_lines import GroupLines
from uneven.run.lines.line import Handle, Line, Lines
from uneven.run.lines.thread_lines import ThreadLines
from uneven.run.lines.traffic import Traffic

__all__ = ["GroupLines", "Handle", "Line", "Lines", "ThreadLines", "Traffic"]
