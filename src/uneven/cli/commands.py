"""All commands. Their modules are imported on demand."""

from dataclasses import dataclass, replace
from importlib.metadata import entry_points


@dataclass(frozen=True, slots=True)
class CliCommand:
    """One line of ``uneven --help``."""

    name: str
    # "module:name" of a function or of a ``typer.Typer`` with subcommands; None if its package is not installed
    where: str | None
    short: str  # description in the list of commands
    passes_on: bool = False  # all arguments after the first plain one go to the user's script
    package: str | None = None  # the one that provides it, if it is not uneven itself


COMMANDS: dict[str, CliCommand] = {
    command.name: command
    for command in (
        CliCommand("run", "uneven.cli.run:run", "Train a script on several workers.", passes_on=True),
        CliCommand("store", "uneven.cli.store:store", "Host the store of an elastic run, on a machine that stays."),
        CliCommand("emulate", "uneven.cli.emulate:command", "Train a script on a described cluster, on this machine."),
        CliCommand("simulate", "uneven.cli.simulate:command", "Simulate a described cluster in virtual time."),
        CliCommand("plan", "uneven.cli.plan:command", "Rank balancers and policies for a cluster, with reasons."),
        CliCommand("measure-link", "uneven.cli.measure_link:command", "Measure the link between two machines."),
        CliCommand("fleet", "uneven.cli.fleet:app", "Train many models together on shared data."),
        CliCommand("search", "uneven.cli.search:app", "Search for the best settings of a training."),
        CliCommand("tables", "uneven.cli.tables:app", "Serve look-ups in embedding tables, also while they train."),
        CliCommand("graph", "uneven.cli.graph:app", "Partition a graph for training on several workers."),
        CliCommand("focus", "uneven.cli.focus:app", "Find things in recorded video."),
        CliCommand("runs", "uneven.cli.runs:runs", "List the runs in a folder, with the next command of each."),
        CliCommand(
            "why", "uneven.cli.why:why", "Name the slow worker of a training, and why it is slow.", passes_on=True
        ),
        CliCommand("watch", "uneven.cli.watch:watch", "Show a run, live or afterwards, in the terminal."),
        CliCommand("report", "uneven.cli.report:report", "Write a run's HTML report, with charts."),
        CliCommand("init", "uneven.cli.init:init", "Write a settings file, uneven.toml."),
        CliCommand("demo", "uneven.cli.demo.command:demo", "Compare uneven with DDP on four unequal workers."),
        CliCommand("bench", None, "Measure a claim on this machine.", package="uneven-bench"),
        CliCommand("doctor", "uneven.cli.doctor:doctor", "Test what works on this machine."),
    )
}

GROUP = "uneven.commands"  # the group of entry points with which other packages add commands


def found() -> dict[str, CliCommand]:
    """Return uneven's commands and those of other packages, which cannot replace one of uneven's own."""
    commands = dict(COMMANDS)
    for entry in entry_points(group=GROUP):
        own = commands.get(entry.name)
        if own is None:
            package = entry.dist.name if entry.dist else None
            commands[entry.name] = CliCommand(entry.name, entry.value, f"Comes with {package}.", package=package)
        # `bench` is listed without its package too, so that the command can name the way to install it.
        elif own.package is not None:
            commands[entry.name] = replace(own, where=entry.value)
    return commands


EXAMPLES = """\
Examples:

  uneven demo                              one to two minutes, nothing to prepare
  uneven run train.py --epochs 5           one worker for each GPU, or one on a machine without
  uneven run --nproc 4 --balance lb-bsp train.py
  uneven run --nproc 4 --shares 0.6,0.4,0.2,0.1 train.py
  uneven simulate demo4 --compare          a described cluster in virtual time, in a second
  uneven watch runs/NAME                   while it runs, or afterwards
  uneven runs                              all runs in ./runs, each with the next command
  uneven doctor                            before the first run, or when one fails
"""
