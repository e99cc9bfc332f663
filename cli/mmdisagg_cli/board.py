"""Shows how the roles of a deployment come up: a live table in a terminal, a line per change elsewhere."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from mmdisagg_cli.progress import Step
from mmdisagg_cli.role_process import RoleProcess

_COLOURS = {Step.READY: "green", Step.STARTING: "dim"}


class Board:
    """A `Tick` for `LocalDeployment.wait_ready`; enter it to show, leave it before other output."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown: dict[str, str] = {}

    def __enter__(self) -> "Board":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def waiting(self, message: str) -> None:
        """Say what is waited for before any role has started; repeated messages are shown once."""
        if self._shown.get("") != message:
            self._shown[""] = message
            self._console.print(message, highlight=False)

    def show(self, roles: Sequence[RoleProcess]) -> None:
        """Show the roles as they are now."""
        if self._live:
            self._live.update(self._table(roles), refresh=True)
            return
        for role in roles:
            words = _words(role)
            if self._shown.get(role.name) != words:
                self._shown[role.name] = words
                self._console.print(f"{role.name}: {words} ({role.elapsed_s:.0f} s)", highlight=False)

    def _table(self, roles: Sequence[RoleProcess]) -> Table:
        table = Table(title=self._title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("role", "state", "time", "address"):
            table.add_column(heading, justify="right" if heading == "time" else "left")
        for role in roles:
            colour = "red" if role.died else _COLOURS.get(role.progress.step, "yellow")
            table.add_row(role.name, f"[{colour}]{_words(role)}[/]", f"{role.elapsed_s:.0f} s", role.url)
        return table


def _words(role: RoleProcess) -> str:
    return "dead" if role.died else role.progress.words
