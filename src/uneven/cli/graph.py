"""The command ``uneven graph``: partition a graph for several workers, inspect it, and forecast its epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uneven.cli.options import DESCRIBED
from uneven.errors import ConfigError
from uneven.policy.core.printable import printable

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Partition graphs for full-batch training on several workers."
)


@app.command("partition")
def partition(
    file: Annotated[
        Path, typer.Argument(help="Edges as a text file, or an .npz with edge_index and optional x, y and masks.")
    ],
    directory: Annotated[Path, typer.Argument(help="Folder to write.")],
    parts: Annotated[int | None, typer.Option(help="Number of parts. [default: one per share]")] = None,
    shares: Annotated[
        str | None, typer.Option(metavar="4,2,1", help="Capacity of each worker, in any unit. [default: equal]")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Cluster whose cores and memory set the shares.")
    ] = None,
    method: Annotated[str, typer.Option(help="One of ne, libra, hdrf, dbh, random; metis (extra graph).")] = "ne",
    beta: Annotated[float, typer.Option(help="Cost of one vertex in all layers, in edges.")] = 10.0,
    features: Annotated[int | None, typer.Option(help="Keep the N most frequent features only.", metavar="N")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first vertices of parts, or of the stream order.")] = 0,
) -> None:
    """Partition a graph, one part for each worker, by their capacities.

    \b
    Examples:
      uneven graph partition amazon.npz parts --parts 4
      uneven graph partition amazon.npz parts --shares 0.5,0.25,0.15,0.1
    """
    from uneven import graph
    from uneven.cli.graph_files import read_graph

    if parts is None and shares is None and by is None:
        raise ConfigError("give --parts 4, or --shares 4,2,1, or --by cluster.toml")
    if by == "speed":
        raise ConfigError("--by speed measures the workers of a run: call graph.partition(…, by='speed') in its script")
    each = None if shares is None else _numbers("--shares", shares, "4,2,1")
    found = read_graph(file, most_features=features)
    graph.partition(found, path=directory, parts=parts, shares=each, by=by, method=method, beta=beta, seed=seed)
    inspect(directory)


@app.command("inspect")
def inspect(directory: Annotated[Path, typer.Argument(help="Folder that `uneven graph partition` wrote.")]) -> None:
    """Print how a graph was partitioned: copies, balance, and the traffic of each exchange of a layer."""
    from uneven.cli.graph_page import described
    from uneven.graph.parts_folder import GraphStore

    print(printable(described(GraphStore(directory))))


@app.command("forecast")
def forecast(
    directory: Annotated[Path, typer.Argument(help="Folder that `uneven graph partition` wrote.")],
    cluster: Annotated[str, typer.Argument(help=DESCRIBED)],
    layers: Annotated[
        str | None,
        typer.Option(metavar="602,64,10", help="Widths of the model. [default: features, 64, classes of the graph]"),
    ] = None,
    core: Annotated[
        str | None,
        typer.Option(
            metavar="80,10", help="Throughput of a core: matmul Gflop/s, 10⁹ additions/s. [default: as measured here]"
        ),
    ] = None,
) -> None:
    """Print the time of an epoch under each exchange on the nodes of a cluster, one part each, in virtual time.

    \b
    Example:
      uneven graph forecast parts cluster.toml --layers 602,64,10
    """
    from uneven.cli import graph_forecast

    widths = None if layers is None else [int(one) for one in _numbers("--layers", layers, "602,64,10")]
    rates = None if core is None else _numbers("--core", core, "80,10")
    graph_forecast.show(directory, cluster, widths, rates)


def _numbers(option: str, text: str, example: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: give numbers with commas between them, {example}") from None
