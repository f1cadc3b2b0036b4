"""The command ``uneven watch``."""

from pathlib import Path
from typing import Annotated

from uneven.cli import answer, complete
from uneven.cli.options import LogTo, argument, option, switch, trackers
from uneven.errors import ConfigError, JournalError, access
from uneven.policy.core.printable import printable


def watch(
    run: Annotated[
        Path | None, argument("[RUN]", "Run directory. [default: the newest in ./runs]", autocompletion=complete.runs)
    ] = None,
    every: Annotated[float, option("SECONDS", "Time between updates.", "--every", min=0.05)] = 0.5,
    once: Annotated[bool, switch("Print the run as it is now, and end.", "--once")] = False,
    form: answer.Format = answer.Form.TEXT,
    log_to: LogTo = None,
    prometheus: Annotated[
        str | None,
        option("[HOST:]PORT", "Serve metrics for Prometheus until Ctrl-C. [default host: 127.0.0.1]", "--prometheus"),
    ] = None,
    web: Annotated[bool, switch("Serve a live page on 127.0.0.1 instead.", "--web")] = False,
    port: Annotated[
        int, option("PORT", "Port of --web. [default: any]", "--port", min=0, max=65535, show_default=False)
    ] = 0,
) -> None:
    """Show a run, live or afterwards, in the terminal.

    Each worker has one row: its speed, its share of the global batch, the parts of its step time, and the cores that it
    uses. The others wait for a worker with no wait; with a good split all waits are short. "Of the limit"
    compares with all workers finishing together and free communication.

    The view ends with the run, or with Ctrl-C, which does not affect the run. Then the command prints a table of the
    whole run, and advice. It only reads the run directory, so it works on any machine that can read it.

    With --web it prints the address of a live page: the charts of `uneven report`, and the answer of `uneven why`. The
    address has a token; requests without the token are rejected. From another machine: ssh -L PORT:127.0.0.1:PORT HOST.

    With --log-to it also sends the run to experiment trackers, live. With --prometheus it also serves the figures as
    metrics, and does not end with the run.

    \b
    Examples:
      uneven watch                 the newest run
      uneven watch runs/NAME       this one, live or finished
      uneven watch --web           in the browser, until Ctrl-C
      uneven watch --once --format json
      uneven watch --log-to tensorboard:curves --log-to wandb:curves
      uneven watch --prometheus 9400
    """
    from uneven.journal.reader import newest_run, rank_paths
    from uneven.journal.report import terminal
    from uneven.journal.report.track.tracking import LiveTracking
    from uneven.runtime.installed import need
    from uneven.runtime.rundir import SETTINGS

    run = run if run is not None else newest_run(started_by=SETTINGS)
    with access(f"look into {run}", JournalError):
        started = (run / SETTINGS).is_file()  # by `uneven run`; its workers may not have written anything yet
        if run.is_dir() and not started and not rank_paths(run):
            below = sorted(path.name for path in run.iterdir() if path.is_dir() and rank_paths(path))
            hint = f"it holds runs, for instance {run / below[-1]}" if below else "it holds no journal and no run.toml"
            raise JournalError(f"{run} is not a run directory: {hint}")
    if form is answer.Form.JSON and not once:
        raise ConfigError("--format json needs --once: the live view has no form in JSON")
    live = {"--web": web, "--log-to": log_to, "--prometheus": prometheus}
    others = [name for name, given in live.items() if given]
    if once:
        if others:
            raise ConfigError(f"--once with {others[0]}: leave one out")
        _print_once(run, form)
        return
    if web:
        if others[1:]:
            raise ConfigError(f"--web with {others[1]}: start `uneven watch` twice")
        _serve(run, port, max(every, 0.5))
        return
    tracking = LiveTracking(run.resolve().name, trackers(log_to)) if log_to else None
    if prometheus is not None:
        need("prometheus", "prometheus_client")
    terminal.watch(run, every_s=every, tracking=tracking, prometheus=prometheus)


def _print_once(run: Path, form: answer.Form) -> None:
    from uneven.journal.report import terminal
    from uneven.journal.report.console import Console

    state = terminal.watch(run, stop=lambda: True, console=Console(quiet=form is answer.Form.JSON))
    if form is answer.Form.TEXT:
        return
    answer.write(
        {
            "run": run,
            "state": terminal.condition(state),
            "iteration": None if state.last is None else state.last.iteration + 1,
            "planned": state.planned,
            "left_s": state.time_left_s(),
            "shares": state.shares(),
            "now": state.now(),
            "total": state.total(),
        }
    )


def _serve(run: Path, port: int, every_s: float) -> None:
    from contextlib import suppress

    from uneven.cli.why_live import LiveExplanation
    from uneven.journal.report.web import WebServer
    from uneven.runtime.installed import need

    need("report", "plotly")
    with WebServer(run, port=port, every_s=every_s, page=LiveExplanation(run).page) as server:
        print(f"{printable(run.name)}: {server.address} (until Ctrl-C)", flush=True)
        with suppress(KeyboardInterrupt):
            server.wait()
