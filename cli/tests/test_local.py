"""`LocalDeployment`: what tests and commands build on."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest
from machine import DEPLOYMENT, Machine, eventually

from mmdisagg_cli.engine_slots import EngineSlots, NoEngineSlot
from mmdisagg_cli.local import LocalDeployment, MissingModel, MissingProgram
from mmdisagg_cli.ports import NoFreePort, PortPool
from mmdisagg_cli.processes import is_alive
from mmdisagg_cli.role_process import NotReady, RoleDied
from mmdisagg_cli.state import AlreadyRunning, StateStore
from mmdisagg_operator.api import load_deployment


def deployment_on(machine: Machine, **options: object) -> LocalDeployment:
    return LocalDeployment(load_deployment(DEPLOYMENT), machine.root, grace_s=2, **options)


def test_all_roles_become_ready_and_nothing_is_left_after(machine: Machine) -> None:
    with deployment_on(machine) as local:
        local.start()
        local.wait_ready(10)
        assert [role.name for role in local.roles] == ["encode", "prefill", "decode", "router"]
        with urllib.request.urlopen(local.url + "/ready") as reply:
            assert reply.status == 200
        assert len(machine.processes()) == 4
    assert machine.leftovers() == []


def test_the_state_tells_other_commands_where_everything_is(machine: Machine) -> None:
    with deployment_on(machine) as local:
        local.start()
        starting = StateStore().running("fake")
        assert starting is not None
        assert starting.phase == "starting"
        local.wait_ready(10)
        state = StateStore().running("fake")
        assert state is not None
        assert (state.phase, state.url, state.supervisor.pid) == ("ready", local.url, os.getpid())
        assert all(role.process and is_alive(role.process) for role in state.roles)
        directory = machine.state / "fake"
        assert directory.stat().st_mode & 0o777 == 0o700
        for secret in ("state.json", "stage-token"):
            assert (directory / secret).stat().st_mode & 0o777 == 0o600
        assert local.stage_token not in (directory / "state.json").read_text()


def test_replicas_are_processes_of_their_own(machine: Machine) -> None:
    spec = {**DEPLOYMENT["spec"], "decode": {"replicas": 2}}
    with LocalDeployment(load_deployment({**DEPLOYMENT, "spec": spec}), machine.root) as local:
        local.start()
        local.wait_ready(10)
        assert local.role("decode-0").port != local.role("decode-1").port


def test_more_engines_than_slots_are_refused_at_once(machine: Machine) -> None:
    spec = {**DEPLOYMENT["spec"], "decode": {"replicas": 3}}
    local = LocalDeployment(load_deployment({**DEPLOYMENT, "spec": spec}), machine.root)
    with pytest.raises(NoEngineSlot, match="5 engines are wanted"):
        local.start()
    assert machine.leftovers() == []


def test_the_yardstick_runs_with_the_others_or_alone(machine: Machine) -> None:
    with deployment_on(machine) as served, deployment_on(machine, serve=False, reference=True) as reference:
        served.start()
        reference.start()
        reference.wait_ready(10)
        assert [role.name for role in reference.roles] == ["aggregated"]
        assert reference.url == reference.role("aggregated").url
    with deployment_on(machine, reference=True) as both:
        both.start()
        both.wait_ready(10)
        assert both.url != both.role("aggregated").url
    assert machine.leftovers() == []


def test_a_role_that_dies_is_reported_with_its_exit_code_and_log(machine: Machine) -> None:
    machine.behave({"prefill": {"exit_after": 0.1, "exit_code": 40}, "router": {"ready_after": 60}})
    with deployment_on(machine) as local:
        local.start()
        with pytest.raises(RoleDied, match="prefill died with exit code 40") as death:
            local.wait_ready(10)
        assert "the fake engine cannot go on" in death.value.role.log_tail(1)
    assert machine.leftovers() == []


def test_a_slow_role_is_named_when_time_is_up(machine: Machine) -> None:
    machine.behave({"decode": {"ready_after": 60}})
    with deployment_on(machine) as local:
        local.start()
        eventually(lambda: local.role("decode").refresh().words == "loading weights")
        with pytest.raises(NotReady, match=r"not ready after 1 s \(decode: loading weights\)"):
            local.wait_ready(1)


def test_a_killed_role_is_no_death_and_comes_back_at_its_address(machine: Machine) -> None:
    machine.behave({"decode": {"child": True}})
    with deployment_on(machine) as local:
        local.start()
        local.wait_ready(10)
        decode = local.role("decode")
        address, members = decode.url, decode.members()
        assert len(members) == 2
        decode.kill()
        assert not any(map(is_alive, members))
        local.check()
        decode.restart()
        decode.wait_ready(10)
        assert decode.url == address
        state = StateStore().running("fake")
        assert state is not None
        assert decode.process in [role.process for role in state.roles]


def test_stubborn_processes_and_shared_memory_do_not_outlive_the_deployment(machine: Machine) -> None:
    segment = Path("/dev/shm") / machine.mark[-32:]
    machine.behave({"encode": {"child": True, "ignore_sigterm": True, "shared_memory": segment.name}})
    with LocalDeployment(load_deployment(DEPLOYMENT), machine.root, grace_s=0.2) as local:
        local.start()
        local.wait_ready(10)
        assert segment.exists()
    assert not segment.exists()
    assert machine.leftovers() == []


def test_shared_memory_of_a_killed_role_goes_with_the_deployment(machine: Machine) -> None:
    segment = Path("/dev/shm") / machine.mark[-32:]
    machine.behave({"prefill": {"shared_memory": segment.name}})
    with deployment_on(machine) as local:
        local.start()
        local.wait_ready(10)
        local.role("prefill").kill()
    assert not segment.exists()


def test_shared_memory_of_a_role_that_died_goes_with_the_deployment(machine: Machine) -> None:
    segment = Path("/dev/shm") / machine.mark[-32:]
    machine.behave({"prefill": {"shared_memory": segment.name}})
    with deployment_on(machine) as local:
        local.start()
        local.wait_ready(10)
        process = local.role("prefill").process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: local.role("prefill").died)
    assert not segment.exists()


def test_a_second_deployment_of_the_same_name_is_refused(machine: Machine) -> None:
    with deployment_on(machine) as first:
        first.start()
        with pytest.raises(AlreadyRunning, match=r"already runs at .* `mmdisagg down fake`"):
            deployment_on(machine).start()
        assert len(machine.processes()) == 4
    assert machine.leftovers() == []


def test_a_port_that_is_in_use_is_refused(machine: Machine) -> None:
    taken = PortPool().take()
    with pytest.raises(NoFreePort, match=f"port {taken.number} .* in use"):
        deployment_on(machine, port=taken.number).start()
    taken.release()
    assert machine.leftovers() == []


def test_a_missing_program_says_what_to_do(machine: Machine) -> None:
    (machine.bin / "mmdisagg-router").unlink()
    with pytest.raises(MissingProgram, match="make setup"):
        deployment_on(machine).start()
    assert machine.leftovers() == []


def test_a_missing_model_is_named(machine: Machine) -> None:
    (machine.root / "model").rmdir()
    with pytest.raises(MissingModel, match=r"spec\.model\.path: there is no directory .*/model"):
        deployment_on(machine).start()
    assert machine.leftovers() == []


def test_slots_are_free_again_after_the_deployment(machine: Machine) -> None:
    with deployment_on(machine) as local:
        local.start()
        assert "held by fake" in EngineSlots().holders()
    assert EngineSlots().holders() == "all are free"
