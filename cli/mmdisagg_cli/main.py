"""The `mmdisagg` command: what it takes from the command line, and the exit codes.

0: done. 1: it failed, or something compared is different. 2: wrong usage or a wrong file. 128 + n: stopped by
signal n. Commands import what they need when they run, so that `mmdisagg --help` answers at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mmdisagg_cli.deployment_file import read_deployment
from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.rendering import Form, Target
from mmdisagg_cli.stop_signals import Stopped, StopSignals

app = typer.Typer(
    help="Serve vision-language models with encode, prefill and decode apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
"""The command."""

_DEMO_FILE = Path("examples/local/shapes.yaml")

_File = Annotated[Path, typer.Option("--file", "-f", help="The deployment's YAML, the same as in a cluster.")]
_Timeout = Annotated[float, typer.Option(help="Seconds within which all roles must be ready.", min=1)]


class _Report(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command()
def up(
    file: _File,
    port: Annotated[
        int | None,
        typer.Option(help="The router's port; by default 8000 or any free one.", min=1, max=65535),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it is ready.")] = False,
    timeout: _Timeout = 1800,
) -> None:
    """Run a deployment on this machine, every role a process, until Ctrl-C or `mmdisagg down`."""
    from mmdisagg_cli.up import up, up_detached

    run = up_detached if detach else up
    with _errors_told():
        raise typer.Exit(run(read_deployment(file), port, timeout, _output(), _console()))


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="The deployment's name.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The YAML that it was started from.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="End all deployments of this user.")] = False,
) -> None:
    """End a deployment that runs on this machine, also one whose `up` was killed."""
    from mmdisagg_cli.down import down
    from mmdisagg_cli.state import StateStore

    failure: CommandError | None = None
    if (name is not None) + (file is not None) + everything != 1:
        raise typer.BadParameter("give a NAME, or -f FILE, or --all")
    store = StateStore()
    with _errors_told():
        names = (
            [name] if name else [read_deployment(file).deployment.metadata.name] if file else store.names()
        )
        for one in names:
            try:
                said = f"{one} is down" if down(store, one) else f"{one} is not running"
            except CommandError as error:
                # With --all the others are ended all the same.
                said, failure = f"error: {error}", error
            _console().print(said, markup=False, highlight=False, soft_wrap=True)
    if failure is not None:
        raise typer.Exit(failure.exit_code)


@app.command()
def status() -> None:
    """Show the deployments that run on this machine."""
    from mmdisagg_cli.state import StateStore
    from mmdisagg_cli.status import status_report

    with _errors_told():
        report = status_report(StateStore())
    _output().print(report if report is not None else "nothing is running", soft_wrap=True)


@app.command()
def render(
    file: _File,
    target: Annotated[Target, typer.Option("--for", help="Where the roles would run.")] = Target.LOCAL,
    form: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TABLE,
) -> None:
    """Print each role's engine arguments and environment, and start nothing."""
    from mmdisagg_cli.rendering import as_text, rendered_roles

    with _errors_told():
        text = as_text(rendered_roles(read_deployment(file), target), form)
    if isinstance(text, str):
        typer.echo(text)
    else:
        _output().print(text)


@app.command()
def verify(
    file: _File,
    requests: Annotated[int, typer.Option(help="How many picture requests to send.", min=1)] = 24,
    seed: Annotated[int, typer.Option(help="The same seed draws the same requests.")] = 0,
    form: Annotated[_Report, typer.Option("--output", "-o", help="How to print the result.")] = _Report.TABLE,
    timeout: _Timeout = 1800,
) -> None:
    """Compare answers with those of one aggregated engine, token for token; uses a deployment that runs, or
    starts it.
    """
    from mmdisagg_cli.verify import report, verify

    with _errors_told(), StopSignals() as signals:
        outcomes = verify(read_deployment(file), requests, seed, timeout, signals, _console())
    summary, table = report(outcomes)
    if form is _Report.JSON:
        typer.echo(summary.to_json())
    else:
        if table is not None:
            _output().print(table)
        typer.echo(summary.in_words())
    raise typer.Exit(0 if summary.passed else 1)


@app.command()
def demo(
    file: _File = _DEMO_FILE,
    picture: Annotated[
        Path | None, typer.Option(help="A picture of yours; by default two are drawn.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="What to ask about it.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same pictures.")] = None,
    timeout: _Timeout = 1800,
) -> None:
    """Send a picture through encode, prefill and decode; show the answer beside an aggregated engine's."""
    from mmdisagg_cli.demo import demo, shown_pictures

    with _errors_told(), StopSignals() as signals:
        pictures = shown_pictures(picture, question, seed)
        passed = demo(read_deployment(file), pictures, timeout, signals, _output(), _console())
    raise typer.Exit(0 if passed else 1)


@app.command()
def doctor() -> None:
    """Look at everything that a local deployment needs from this machine, and say what to do."""
    from mmdisagg_cli.doctor import Verdict, examine, findings_table

    findings = list(examine())
    _output().print(findings_table(findings))
    raise typer.Exit(1 if any(finding.verdict is Verdict.FAILED for finding in findings) else 0)


def _output() -> Console:
    return Console()


def _console() -> Console:
    """Where progress and errors go, so that the output stays clean for scripts."""
    return Console(stderr=True)


@contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        _console().print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from error
    except Stopped as stop:
        _console().print(str(stop), highlight=False)
        raise typer.Exit(stop.exit_code) from stop


if __name__ == "__main__":
    app()
