"""Capture and restore a member bit for bit, readable with ``torch.load(weights_only=True)``."""

from typing import Any

from uneven.errors import CheckpointError
from uneven.fleet.ensemble import Member
from uneven.runtime.states import StateFiles, random_state, set_random_state

FILES = StateFiles(
    schema=1,
    remedy="let the state_dict of the member's model, optimizer and scheduler return tensors, numbers, words, lists "
    "and dictionaries",
)


def capture(
    name: str, member: Member, epochs: int, history: list[dict[str, Any]], states: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the state of a member. `states` are its workers' random states, by default only this process's."""
    states = states or [random_state()]
    return {
        "name": name,
        "epochs": epochs,
        "history": history,
        "model": member.model.state_dict(),
        "optimizer": member.optimizer.state_dict(),
        "scheduler": member.scheduler.state_dict() if member.scheduler is not None else None,
        "random": states[0],
        "others": states[1:],
    }


def restore(saved: dict[str, Any], name: str, member: Member, rank: int = 0) -> None:
    """Restore a newly made member from its checkpoint, as worker `rank` of the member.

    Raises `CheckpointError` if the factory makes another model, optimizer or scheduler than the saved one.
    """
    try:
        member.model.load_state_dict(saved["model"])
        member.optimizer.load_state_dict(saved["optimizer"])
        if (member.scheduler is None) != (saved["scheduler"] is None):
            raise CheckpointError(
                f"member {name!r}: the checkpoint and the factory disagree on a scheduler: use the factory of the "
                "first call, or name another directory"
            )
        if member.scheduler is not None:
            member.scheduler.load_state_dict(saved["scheduler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"member {name!r}: its checkpoint does not fit the model of its factory ({error}): use the factory of "
            "the first call, or name another directory"
        ) from error
    # The number of workers may have changed since, so a rank may have no saved state.
    states = [saved["random"], *saved.get("others", ())]
    if rank < len(states):
        set_random_state(states[rank])
