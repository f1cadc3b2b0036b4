"""Ray Tune's schedulers in virtual time: the calls of its controller in its order, and their effects.

It has no processes and no files; a checkpoint is the training so far. The schedulers are Ray's own objects.
"""

import heapq
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class RayTrial:
    """The part of a trial that Ray's schedulers use. ``status``: Ray's word for it; ``t``: its training so far."""

    is_saving = False

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        self.trial_id = str(number)
        self.config = dict(config)
        self.status = "PENDING"
        self.t = 0
        self.last_result: dict[str, Any] = {}
        self.evaluated_params: dict[str, Any] = {}
        self.experiment_tag = ""
        self.temporary_state = SimpleNamespace(saving_to=None)
        kept = SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None), _latest_checkpoint_result=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=kept)

    @property
    def checkpoint(self) -> Any:
        """The point from which it would continue."""
        kept = self.run_metadata.checkpoint_manager._latest_checkpoint_result
        return kept.checkpoint if kept is not None else None

    def is_finished(self) -> bool:
        """Return whether it will not run again."""
        return self.status == "TERMINATED"

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        """Ignore the name, which is not used."""


class RayController:
    """A stand-in for Ray's controller, with one of Ray's schedulers. The ``settings`` of all trials are known in
    advance and in order, as with Ray's own searcher."""

    search_alg = None

    def __init__(self, scheduler: Any, settings: Sequence[dict[str, Any]]) -> None:
        self._scheduler = scheduler
        self._trials = [RayTrial(number, each) for number, each in enumerate(settings)]
        for trial in self._trials:
            scheduler.on_trial_add(self, trial)

    def get_trials(self) -> list[RayTrial]:
        return self._trials

    def get_live_trials(self) -> list[RayTrial]:
        return [trial for trial in self._trials if not trial.is_finished()]

    def pause_trial(self, trial: RayTrial, should_checkpoint: bool = True) -> None:
        trial.status = "PAUSED"
        if should_checkpoint:
            trial.run_metadata.checkpoint_manager._latest_checkpoint_result = SimpleNamespace(
                checkpoint=SimpleNamespace(t=trial.t)
            )

    def stop_trial(self, trial: RayTrial) -> None:
        if trial.is_finished():
            return
        if trial.status == "RUNNING":
            self._scheduler.on_trial_complete(self, trial, trial.last_result)
        else:
            self._scheduler.on_trial_remove(self, trial)
        trial.status = "TERMINATED"

    def _schedule_trial_save(self, trial: RayTrial, result: Any = None) -> Any:
        return SimpleNamespace(t=trial.t)

    def play(self, curve: Callable[[dict[str, Any], int], float], slots: int, max_t: int | None) -> float:
        """Play the search to its end, and return the training of all trials. ``curve``: settings and training → score;
        ``max_t``: Ray's criterion ``stop``, None without one."""
        units, now_s = 0, 0.0
        queue: list[tuple[float, int]] = []
        while True:
            while len(queue) < slots and (trial := self._scheduler.choose_trial_to_run(self)) is not None:
                trial.t = trial.checkpoint.t if trial.checkpoint is not None else 0
                trial.status = "RUNNING"
                heapq.heappush(queue, (now_s + 1, int(trial.trial_id)))
            if not queue:
                return units
            now_s, number = heapq.heappop(queue)
            units += 1
            if self._reports(self._trials[number], curve, max_t):
                heapq.heappush(queue, (now_s + 1, number))

    def _reports(self, trial: RayTrial, curve: Callable[[dict[str, Any], int], float], max_t: int | None) -> bool:
        """Train it a little more, and return whether it continues."""
        trial.t += 1
        result = trial.last_result = {"training_iteration": trial.t, "score": curve(trial.config, trial.t)}
        if max_t is not None and trial.t >= max_t:
            said = "STOP"
        else:
            said = self._scheduler.on_trial_result(self, trial, result)
        if said == "STOP":
            self.stop_trial(trial)
        elif said == "PAUSE":
            self.pause_trial(trial)
        return trial.status == "RUNNING"
