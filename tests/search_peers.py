"""Objectives as users of Optuna and Ray Tune write them, for Optuna itself and for a search."""

from __future__ import annotations

from typing import Any

import optuna
import torch


def returns(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


def steps_of_a_float(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1, step=0.3))


def steps_of_an_int(trial: Any) -> int:
    return int(trial.suggest_int("n", 1, 8, step=3)) + int(trial.suggest_int("m", 1, 64, log=True))


def equal_ends(trial: Any) -> float:
    return float(trial.suggest_float("x", 1, 1)) + int(trial.suggest_int("n", 2, 2))


def ranges_differ(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1 + trial.number))


def conditional(trial: Any) -> float:
    if trial.suggest_categorical("kind", ("a", "b")) == "a":
        return float(trial.suggest_float("x", 0, 1))
    return float(trial.suggest_int("n", 1, 8))


def folds(trial: Any) -> float:
    """The mean over folds is what counts, and not the best fold."""
    x = trial.suggest_float("x", 0, 1)
    for fold in range(3):
        trial.report(x * fold, fold)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(x)


def by_name(trial: Any) -> float:
    x = trial.suggest_float("x", 0, 1)
    trial.report(value=x, step=0)
    trial.report(x / 2, step=7)
    return float(x / 2)


def a_step_twice(trial: Any) -> float:
    trial.report(0.5, 3)
    trial.report(0.7, 3)
    return 0.7


def climbs(trial: Any) -> float:
    """A curve whose height hangs on the setting; most are not worth their end."""
    x = trial.suggest_float("x", 0, 1)
    for step in range(9):
        trial.report(x * (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return 9.0 * float(x)


def gives_up(trial: Any) -> float:
    x = float(trial.suggest_float("x", 0, 1))
    if x < 0.6:
        raise optuna.TrialPruned
    return x


def scaled(trial: Any, factor: float) -> float:
    return factor * float(trial.suggest_float("x", 0, 1))


class Objective:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, trial: Any) -> float:
        return scaled(trial, self.factor)

    def method(self, trial: Any) -> float:
        return self(trial)

    @staticmethod
    def static(trial: Any) -> float:
        return returns(trial)


def two(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1) + trial.suggest_int("n", 0, 9))


def takes_two(trial: Any) -> float:
    return float(trial["x"]) + int(trial["n"])


def forever(trial: Any) -> None:
    while True:
        trial.report(score=0.0)


# ------------------------------------------------------------------ Ray Tune
def reports_a_mapping(trial: Any) -> None:
    for step in range(3):
        trial.report({"score": trial["x"] * step, "loss": 1.0})


def returns_a_mapping(trial: Any) -> dict[str, float]:
    return {"score": trial["x"], "loss": 1.0}


# ------------------------------------------------------------------ refused
def a_tuple(trial: Any) -> tuple[float, float]:
    return 1.0, 2.0


def nothing(trial: Any) -> None:
    return None


def a_word(trial: Any) -> str:
    return "high"


def a_tensor(trial: Any) -> torch.Tensor:
    return torch.tensor(1.0)


def another_metric(trial: Any) -> dict[str, float]:
    return {"loss": 1.0}


def yields(trial: Any) -> Any:
    yield {"score": 1.0}


def lists(trial: Any) -> int:
    return len(trial.suggest_categorical("layers", [[64], [64, 64]]))


def dictionaries(trial: Any) -> int:
    return len(trial.suggest_categorical("layers", [{"width": 64}]))


def equals(trial: Any) -> float:
    return float(trial.suggest_categorical("x", [1, 1]))


def steps_and_log(trial: Any) -> float:
    return float(trial.suggest_int("n", 1, 9, step=2, log=True))


def a_negative_step(trial: Any) -> None:
    trial.report(1.0, -1)


def a_step_back(trial: Any) -> None:
    trial.report(1.0, 5)
    trial.report(1.0, 3)


def no_value(trial: Any) -> None:
    trial.report(None, 3)


def choices_differ(trial: Any) -> float:
    return float(trial.suggest_categorical("x", [1, 2] if trial.number % 2 else [1, 2, 3]))


def user_attribute(trial: Any) -> float:
    trial.set_user_attr("epochs", 3)
    return 1.0


def old_range(trial: Any) -> float:
    return float(trial.suggest_loguniform("x", 1e-3, 1))


def by_get(config: Any) -> dict[str, Any]:
    return {"score": config.get("x", 1)}


def by_stars(config: Any) -> dict[str, Any]:
    return dict(**config)
