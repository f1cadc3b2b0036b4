"""The command ``uneven tables serve``: look-ups in embedding tables for other programs."""

from pathlib import Path
from typing import Annotated

from uneven.cli import complete
from uneven.cli.help import group, verb
from uneven.cli.options import argument, option
from uneven.errors import ConfigError

app = group("Serve look-ups in embedding tables, also while they train.")

_SERVED = "Run directory of a training with --tables, or a folder of tables.save_checkpoint()."


@verb(app, "serve")
def serve(
    folder: Annotated[Path, argument("RUN", _SERVED, autocompletion=complete.runs, show_default=False)],
    http: Annotated[
        int | None, option("PORT", "Port of HTTP; 0 is any free port. [default: none]", min=0, max=65535)
    ] = None,
    zmq: Annotated[
        int | None, option("PORT", "Port of ZeroMQ; 0 is any free port. [default: none]", min=0, max=65535)
    ] = None,
    bind: Annotated[
        str, option("HOST", "Address of this machine. On others than loopback HTTP needs a token.")
    ] = "127.0.0.1",
    silence: Annotated[
        float, option("SECONDS", "Treat the training as ended if no table server answers for this long.", min=1)
    ] = 30.0,
) -> None:
    """Serve look-ups over HTTP and ZeroMQ.

    The service reads from the table servers of a running training. No worker waits for it. It cannot change a row or
    admit an id. Without a training it serves saved rows: a folder of tables.save_checkpoint(), or the automatic
    saves of the run. When a training ends, it continues with the last automatic save; without one, it ends.

    POST /lookup takes {"ids": {feature: [id, ...]}} and returns {"features": {feature: rows}}. GET /tables lists
    the features, GET /health asks the table servers, and GET /metrics is for Prometheus. Over ZeroMQ, connections are
    encrypted with the keys in RUN/serving; only the owner of the run can read them.

    Exit codes: 0 stopped with Ctrl-C or SIGTERM; 1 the training has ended without a save; 2 wrong setting.

    \b
    Examples:
      uneven tables serve runs/NAME --http 8080
      curl http://127.0.0.1:8080/lookup -d '{"ids": {"carrier": [3], "tags": [[1, 2]]}}'
      uneven tables serve saved --http 8080 --zmq 5555
      uneven tables serve runs/NAME --http 8080 --bind 0.0.0.0    prints an address with a token
    """
    if http is None and zmq is None:
        raise ConfigError("nothing to listen on: give --http PORT, --zmq PORT, or both (0 is any free port)")
    import signal
    from contextlib import suppress

    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from uneven.embedding.table_service import serve as serve_tables  # imports torch

        serve_tables(folder, http, zmq, bind, silence, lambda text: print(f"uneven: {text}", flush=True))
