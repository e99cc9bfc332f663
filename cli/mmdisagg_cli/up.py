"""`mmdisagg up`: a deployment on this machine, until Ctrl-C or `mmdisagg down`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from mmdisagg_cli.background import in_background
from mmdisagg_cli.bring_up import bring_up, failures_reported
from mmdisagg_cli.deployment_file import DeploymentFile
from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.local import LocalDeployment
from mmdisagg_cli.state import StateStore
from mmdisagg_cli.stop_signals import Stopped, StopSignals

_WATCH_S = 0.2


def up(file: DeploymentFile, port: int | None, timeout_s: float, output: Console, console: Console) -> int:
    """Run a deployment in the foreground; returns the exit code."""

    def ready(local: LocalDeployment) -> None:
        output.print(_announcement(file, local.url), markup=False, highlight=False, soft_wrap=True)
        output.print("Stop it with Ctrl-C.", markup=False, highlight=False)

    return _serve(file, port, timeout_s, console, ready)


def up_detached(
    file: DeploymentFile, port: int | None, timeout_s: float, output: Console, console: Console
) -> int:
    """Run a deployment in the background and return once it is ready; returns the exit code."""

    def work(write_to: Callable[[Path], None]) -> int:
        def ready(local: LocalDeployment) -> None:
            write_to(local.store.directory(local.name) / "logs" / "mmdisagg.log")

        return _serve(file, port, timeout_s, console, ready)

    code = in_background(work)
    state = StateStore().running(file.deployment.metadata.name)
    if code is None and state is not None:
        output.print(_announcement(file, state.url), markup=False, highlight=False, soft_wrap=True)
        output.print(f"Stop it with `mmdisagg down {state.name}`.", markup=False, highlight=False)
        return 0
    return code or 1


def _serve(
    file: DeploymentFile,
    port: int | None,
    timeout_s: float,
    console: Console,
    ready: Callable[[LocalDeployment], None],
) -> int:
    with StopSignals() as signals:
        local = LocalDeployment(file.deployment, file.base, port=port, hurry=lambda: signals.impatient)
        try:
            with local, failures_reported(local, console):
                bring_up(local, signals, console, timeout_s)
                ready(local)
                _watch(local, signals, console)
        except Stopped as stop:
            console.print(f"{local.name} is down: nothing is left running", highlight=False)
            return stop.exit_code
        except CommandError as error:
            console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            return error.exit_code


def _watch(local: LocalDeployment, signals: StopSignals, console: Console) -> NoReturn:
    try:
        while True:
            signals.raise_if_received()
            local.check()
            time.sleep(_WATCH_S)
    except Stopped:
        console.print(f"stopping {local.name} (once more to kill it at once)", highlight=False)
        raise


def _announcement(file: DeploymentFile, url: str) -> str:
    model = file.deployment.spec.model.served_name
    picture = "data:image/png;base64,$(base64 -w0 picture.png)"
    body = (
        f'{{"model": "{model}", "messages": [{{"role": "user", "content": ['
        f'{{"type": "image_url", "image_url": {{"url": "{picture}"}}}}, '
        f'{{"type": "text", "text": "What is in the image?"}}]}}]}}'
    )
    return f"""{file.deployment.metadata.name} is ready at {url}

  curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d @- <<EOF
  {body}
EOF
"""
