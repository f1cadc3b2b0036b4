"""The slow loop's transport over ``torch.distributed``: its own gloo group, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from uneven.run.lines.group_lines import new_group
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic
from uneven.run.lines.transport import Rows

_REPORTS = "gathering the reports"


class _Gather:
    def __init__(self, work: dist.Work, table: torch.Tensor, roll: RollCall, traffic: Traffic) -> None:
        self._work = work
        self._table = table
        self._roll = roll
        self._traffic = traffic

    def result(self) -> Rows:
        with self._roll.waiting(_REPORTS), self._traffic.waiting():
            self._work.wait()
        rows: Rows = self._table.numpy()
        return rows


class CollectiveTransport:
    """Implements :class:`uneven.run.lines.transport.Transport`; raises :class:`PeerError` if the group is not formed
    in time."""

    def __init__(self, timeout_s: float, roll: RollCall, traffic: Traffic) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._roll = roll
        self._traffic = traffic
        # Its own group: on a shared one, reports and gradients would have to be issued in one common order.
        with roll.waiting("forming the group for reports"):
            self._group: Any = new_group(timeout_s=timeout_s, backend="gloo")

    def gather(self, row: Sequence[float]) -> _Gather:
        """Start an all-gather of one row of float64."""
        mine = torch.tensor(row, dtype=torch.float64)
        table = torch.empty((self.size, len(row)), dtype=torch.float64)
        with self._roll.waiting(_REPORTS):
            work = dist.all_gather(list(table.unbind()), mine, group=self._group, async_op=True)
        assert work is not None
        self._traffic.sent_bytes += (self.size - 1) * mine.nbytes
        return _Gather(work, table, self._roll, self._traffic)

    def gather_text(self, text: str) -> tuple[str, ...]:
        """Return all workers' texts, by rank; sent as bytes, never unpickled."""
        payload = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = [int(row[0]) for row in self.gather([float(len(payload))]).result()]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)  # all_gather needs equal lengths
        padded[: len(payload)] = payload
        table = torch.empty((self.size, len(padded)), dtype=torch.uint8)
        with self._roll.waiting("comparing the ranks at start"), self._traffic.waiting():
            self._traffic.sent_bytes += (self.size - 1) * padded.nbytes
            dist.all_gather(list(table.unbind()), padded, group=self._group)
        return tuple(bytes(table[rank, :length].tolist()).decode() for rank, length in enumerate(lengths))

    def close(self) -> None:
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
