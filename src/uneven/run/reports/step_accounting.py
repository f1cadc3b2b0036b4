"""The time, load and measuring cost of each iteration of one worker."""

import math
import time
from functools import partial

import torch

from uneven.policy.control import Load
from uneven.policy.core.records import StepRecord
from uneven.policy.samples.order import Portion
from uneven.run.context.scribe import Scribe
from uneven.run.measure.machine_load import LoadMeter, nvml_uuid
from uneven.run.measure.meter import Meter, MeterReading, clock_for
from uneven.run.measure.other_load import LEAST_S, Others, find
from uneven.run.reports.slow import SlowLoop

# An iteration counts as at most this many times the shortest recent one: the loop may have been paused in it.
_LONGEST = 10.0

_GLANCE_S = 1.0  # interval between readings of other processes' load for the journal, if no predictor needs them


class StepAccounting:
    """The step accounting of one worker: written around each iteration and read at intervals."""

    def __init__(self, rank: int, scribe: Scribe, device: torch.device) -> None:
        self._rank = rank
        self._scribe = scribe
        self.meter = Meter(clock_for(device))  # measures the iteration under way
        self.load = LoadMeter(rank, gpu_uuid=nvml_uuid(device), device=device)  # reads the machine's load
        self._others = Others(find())
        self._ended: dict[int, tuple[Portion, int, int, float]] = {}
        self._shortest_s = math.inf
        self._size = 0  # samples of all workers in the iteration read last
        self.use = Load()  # newest reading of the node's load
        self.control_s = 0.0  # cost of measuring and deciding since the last record, in seconds
        self.passes = 1  # forward and backward passes of the iteration under way

    def end(self, part: Portion, counted: int) -> None:
        self._ended[part.iteration] = part, counted, self.passes, time.time()
        self.passes = 1

    def read(self, slow: SlowLoop) -> None:
        """Read the timings that are ready and write their records; the first one gets the whole ``control_s``."""
        self.control_s += self._scribe.take_spent_s()
        # Right after a step the caches hold the model: reading several iterations together costs as much as reading
        # one.
        timings = self.meter.timings()
        if self._ended:
            self._look(self._trained_s(timings))
        if slow.adapts:
            self.use = Load(self._others.sample(LEAST_S if slow.watches else _GLANCE_S), self.load.memory)
        for timing in timings:
            ended = self._ended.pop(timing.iteration, None)
            if ended is None:  # of an iteration that was begun again before the device had reached the first end
                continue
            part, counted, passes, ended_at_s = ended
            late, self._size = part.size < 0.9 * self._size, part.size  # a small last part runs at another speed
            slow.measured(timing, part.work(self._rank), self.control_s, self.use, late)
            if self._scribe.writing:
                its = partial(step_record, self._rank, part, timing, self.control_s, ended_at_s, self.use)
                self._scribe.write(partial(its, counted=counted, passes=passes))
            self.control_s = 0.0

    def _trained_s(self, timings: list[MeterReading]) -> float:
        shortest_s = min((timing.whole_s for timing in timings), default=self._shortest_s)
        most_s = _LONGEST * min(shortest_s, self._shortest_s)
        self._shortest_s = shortest_s
        return sum(min(timing.whole_s, most_s) for timing in timings)

    def _look(self, trained_s: float) -> None:
        """Read the machine's load if it is time, and its memory after the largest batch so far."""
        parts = [part for part, *_ in self._ended.values()]
        look = self.load.sample(parts[-1].iteration, max(part.batch(self._rank) for part in parts), trained_s)
        if look is not None and self._scribe.writing:
            self._scribe.write(look)
        elif look is not None:
            self.load.refresh()

    def close(self) -> None:
        self.load.close()


def step_record(
    rank: int,
    part: Portion,
    timing: MeterReading,
    control_s: float,
    ended_at_s: float,
    use: Load | None = None,
    thread: int = 0,
    threads: int = 1,
    counted: int | None = None,
    passes: int = 1,
) -> StepRecord:
    use = use or Load()
    return StepRecord(
        rank=rank,
        iteration=timing.iteration,
        epoch=part.epoch,
        batch=part.batch(rank),
        global_batch=part.size if counted is None else counted,
        cost=None if part.works is None else part.work(rank),
        data_s=timing.data_s,
        compute_s=timing.compute_s,
        exchange_s=timing.exchange_s,
        transfer_s=timing.transfer_s,
        local_cpu_s=timing.local_cpu_s,
        exchange_cpu_s=timing.exchange_cpu_s,
        control_s=control_s,
        ended_at_s=ended_at_s,
        others=_known(use.cpu),
        memory=_known(use.memory),
        thread=thread,
        threads=threads,
        passes=passes,
    )


def _known(reading: float) -> float | None:
    return None if math.isnan(reading) else round(reading, 4)
