"""A partitioned graph as text, and for JSON."""

from typing import Any

import numpy as np

from uneven.graph.parts_folder import GraphStore


def described(store: GraphStore) -> str:
    facts, found = store.facts, store.figures()
    rooted = np.bincount(store.array("roots"), minlength=facts.parts).tolist()
    total = facts.edges + facts.beta * facts.vertices
    lines = [
        f"{facts.vertices:,} vertices, {facts.edges:,} directed edges, cut into {facts.parts} by {facts.method}, "
        f"seed {facts.seed}",
        f"copies of a vertex: {found.replication:.3f} on average; an exchange moves {found.clone_rows:,} rows each way",
        f"tensors: {', '.join(store.names) or 'none'}",
        "",
        " part    share         edges     vertices        roots  cost ÷ target",
    ]
    for p in range(facts.parts):
        over = (found.edges[p] + facts.beta * rooted[p]) / max(1e-300, facts.shares[p] * total)
        lines.append(
            f"{p:5d} {facts.shares[p]:8.3f} {found.edges[p]:13,} {found.held[p]:12,} {rooted[p]:12,} {over:14.3f}"
        )
    lines += ["", f"Cost is edges + {facts.beta:g} · roots."]
    return "\n".join(lines)


def as_json(store: GraphStore) -> dict[str, Any]:
    facts, found = store.facts, store.figures()
    rooted = np.bincount(store.array("roots"), minlength=facts.parts).tolist()
    parts = [
        {"share": share, "edges": edges, "vertices": held, "roots": roots}
        for share, edges, held, roots in zip(facts.shares, found.edges, found.held, rooted, strict=True)
    ]
    names = ("vertices", "edges", "method", "seed", "beta")
    return {
        **{name: getattr(facts, name) for name in names},
        "replication": found.replication,
        "clone_rows": found.clone_rows,
        "tensors": list(store.names),
        "parts": parts,
    }
