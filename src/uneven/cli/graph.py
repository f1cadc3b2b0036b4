"""The commands ``uneven graph …``: partition a graph for several workers, inspect it, and forecast its epochs."""

from pathlib import Path
from typing import Annotated

from uneven.cli import answer, complete
from uneven.cli.help import group, verb
from uneven.cli.options import DESCRIBED, argument, option
from uneven.errors import ConfigError
from uneven.policy.core.printable import printable

app = group("Partition graphs for full-batch training on several workers.")

Folder = Annotated[Path, argument("FOLDER", "Folder that `uneven graph partition` has written.")]


@verb(app, "partition")
def partition(
    file: Annotated[
        Path, argument("FILE", "Edges as a text file, or an .npz with edge_index and optional x, y and masks.")
    ],
    directory: Annotated[Path, argument("FOLDER", "Folder to write.")],
    parts: Annotated[int | None, option("N", "Number of parts. [default: one for each capacity]")] = None,
    capacities: Annotated[str | None, option("4,2,1", "Capacity of each worker, in any unit. [default: equal]")] = None,
    by: Annotated[
        str | None,
        option("CLUSTER", "Cluster whose cores and memory are the capacities.", autocompletion=complete.clusters),
    ] = None,
    method: Annotated[str, option("NAME", "One of ne, libra, hdrf, dbh, random; metis (extra graph).")] = "ne",
    beta: Annotated[float, option("EDGES", "Cost of one vertex in all layers, in edges.")] = 10.0,
    features: Annotated[int | None, option("N", "Keep the N most frequent features only.")] = None,
    seed: Annotated[int, option("N", "Seed of the first vertices of parts, or of the stream order.")] = 0,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Partition a graph, with a part for each worker.

    Parts are in proportion to the capacities of the workers.

    \b
    Examples:
      uneven graph partition amazon.npz parts --parts 4
      uneven graph partition amazon.npz parts --capacities 4,2,1,1
    """
    from uneven import graph
    from uneven.cli.graph_files import read_graph

    if parts is None and capacities is None and by is None:
        raise ConfigError("give --parts 4, or --capacities 4,2,1, or --by cluster.toml")
    if by == "speed":
        raise ConfigError("--by speed measures the workers of a run: call graph.partition(…, by='speed') in its script")
    each = None if capacities is None else _numbers("--capacities", capacities, "4,2,1")
    found = read_graph(file, most_features=features)
    graph.partition(found, path=directory, parts=parts, shares=each, by=by, method=method, beta=beta, seed=seed)
    inspect(directory, form)


@verb(app, "inspect")
def inspect(directory: Folder, form: answer.Format = answer.Form.TEXT) -> None:
    """Print copies, balance and traffic of a partitioned graph.

    The traffic is that of each exchange of a layer.

    \b
    Examples:
      uneven graph inspect parts
      uneven graph inspect parts --format json
    """
    from uneven.cli import graph_page
    from uneven.graph.parts_folder import GraphStore

    store = GraphStore(directory)
    if form is answer.Form.JSON:
        answer.write(graph_page.as_json(store))
    else:
        print(printable(graph_page.described(store)))


@verb(app, "forecast")
def forecast(
    directory: Folder,
    cluster: Annotated[str, argument("CLUSTER", DESCRIBED, autocompletion=complete.clusters)],
    layers: Annotated[
        str | None, option("602,64,10", "Widths of the model. [default: features, 64, classes of the graph]")
    ] = None,
    core: Annotated[
        str | None,
        option("80,10", "Throughput of a core: matmul Gflop/s, 10⁹ additions/s. [default: as measured here]"),
    ] = None,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Forecast the time of an epoch on a cluster.

    Each node has one part. The command simulates an epoch under each exchange in virtual time.

    \b
    Example:
      uneven graph forecast parts cluster.toml --layers 602,64,10
    """
    from uneven.cli import graph_forecast

    widths = None if layers is None else [int(one) for one in _numbers("--layers", layers, "602,64,10")]
    rates = None if core is None else _numbers("--core", core, "80,10")
    graph_forecast.show(directory, cluster, widths, rates, form)


def _numbers(option: str, text: str, example: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: give numbers with commas between them, {example}") from None
