"""`mmdisagg status`: the deployments of this user on this machine, and how each role is."""

from rich.console import Group
from rich.table import Table

from mmdisagg_cli.processes import is_alive
from mmdisagg_cli.state import DeploymentState, RoleState, StateStore


def status_report(store: StateStore) -> Group | None:
    """All deployments with their roles; None when there are none."""
    states = [state for state in map(store.read, store.names()) if state is not None]
    notes = [note for state in states for note in _notes(store, state)]
    return Group(_table(states), "", *notes) if states else None


def _table(states: list[DeploymentState]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("deployment", "state", "role", "process", "pid", "port"):
        table.add_column(heading, overflow="fold")
    for state in states:
        phase = state.phase if state.alive else "left behind"
        names = [(state.name, phase), *[("", "")] * len(state.roles)]
        for name, role in zip(names, state.roles or [None], strict=False):
            table.add_row(*name, *(_role_cells(role) if role else ()))
    return table


def _role_cells(role: RoleState) -> tuple[str, ...]:
    alive = role.process is not None and is_alive(role.process)
    pid = str(role.process.pid) if role.process else "-"
    return role.name, "alive" if alive else "dead", pid, str(role.port)


def _notes(store: StateStore, state: DeploymentState) -> list[str]:
    if not state.alive:
        return [f"{state.name} was left behind by a killed command; run `mmdisagg down {state.name}`"]
    return [f"{state.name}: {state.url}, logs in {store.directory(state.name) / 'logs'}"]
