"""Cells of the matrix that do not come out as they shall, yet.

A cell that is listed here and comes out right fails the test, so that this table cannot rot. It is to be empty.
"""

from __future__ import annotations

from idiom_runs import RUN

FETCHING = ("fetched_between", "prefetched", "looked_ahead", "listed")
WRAPPED = ("ddp_after", "fabric_before", "fabric_after", "accelerate_after", "fsdp2_before", "fsdp2_after")
EVERY = ("even", "static", "moving")

KNOWN: dict[tuple[str, str, str], str] = {
    **{(name, "bsp", shares): "point 1" for name in (*FETCHING, "accumulated_fetching", "backward_twice")
       for shares in EVERY},
    **{(name, "local", shares): "point 1" for name in FETCHING for shares in EVERY},
    **{("left_by_rank_0", policy, shares): "point 3" for policy in ("bsp", "local") for shares in EVERY},
    **{("skipped_by_one", "bsp", shares): "point 3" for shares in EVERY},
    **{(name, policy, shares): "point 2" for name in WRAPPED for policy, shares in RUN},
    **{("second_session", policy, shares): "point 4" for policy, shares in RUN},
    **{(name, policy, shares): "point 5" for name in ("stream_sharded", "stream_shuffled")
       for policy, shares in RUN if policy != "asp"},
    **{("resumed_at_the_end", policy, shares): "point 6" for policy in ("bsp", "local") for shares in EVERY},
    **{("resumed_in_hand", policy, shares): "point 7" for policy in ("bsp", "local") for shares in EVERY},
    **{("own_policy", "bsp", shares): "point 8" for shares in EVERY},
    **{("sparse_embeddings", "bsp", shares): "point 10" for shares in EVERY},
    **{("saved_whole", policy, shares): "point 11" for policy, shares in RUN},
    **{(name, "bsp", shares): "found here" for name in ("unfrozen_later", "step_in_backward", "updated_by_hand",
       "unused_and_unsaid") for shares in EVERY},
    **{(name, policy, shares): "found here" for name in ("unfrozen_later", "new_head")
       for policy, shares in RUN if policy != "bsp"},
}  # fmt: skip
"""(idiom, policy, shares) → the point of the issue that it waits for."""
