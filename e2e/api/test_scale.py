"""Two hundred resources at once; `MMDISAGG_LONG=1` runs all of them, otherwise one in twenty."""

import os
import statistics
import threading
import time

import pytest
from documents import document
from kube import DEPLOYMENT, RESOURCE, until

LONG = bool(os.environ.get("MMDISAGG_LONG"))
RESOURCES = 200 if LONG else 10
HUNG_SECONDS = 600 if LONG else 120
"""Far above any number that was seen, on a machine however busy: only something that hangs takes so long."""


@pytest.mark.timeout(1800)
def test_many_resources_at_once(start, kube, namespace, capsys):
    running = start("--resync", "3600").wait_until_it_leads()
    idle_mib, created, done = running.memory_mib(), {}, {}

    def watch():
        while len(done) < RESOURCES:
            found = {}
            for one in kube.list(DEPLOYMENT, namespace):
                owner = one["metadata"]["ownerReferences"][0]["name"]
                found[owner] = found.get(owner, 0) + 1
            now = time.monotonic()
            done.update({name: now for name, number in found.items() if number == 4 and name not in done})
            time.sleep(0.1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for number in range(RESOURCES):
        made = document()
        made["metadata"] = {"name": f"m{number}", "namespace": namespace}
        created[f"m{number}"] = time.monotonic()
        kube.create(RESOURCE, namespace, made)
    until("all children", lambda: len(done) == RESOURCES, seconds=1500)
    seconds = sorted(done[name] - created[name] for name in created)
    p99 = seconds[int(0.99 * (len(seconds) - 1))]
    running.is_quiet(5.0)
    rounds, writes = running.metric("mmdisagg_operator_reconciles_total"), running.writes()
    took = running.metric("mmdisagg_operator_reconcile_seconds_sum") / rounds
    with capsys.disabled():
        print(
            f"\n{RESOURCES} resources: children applied after p50 {statistics.median(seconds):.1f} s, "
            f"p99 {p99:.1f} s; {writes / RESOURCES:.1f} writes a resource, "
            f"{writes / rounds:.2f} a round ({rounds:.0f} rounds of {took * 1000:.0f} ms); "
            f"memory {idle_mib:.0f} -> {running.memory_mib():.0f} MiB; load {os.getloadavg()[0]:.0f}"
        )
    assert p99 < HUNG_SECONDS
    assert writes / RESOURCES < 40
    assert running.memory_mib() < idle_mib + 1.0 * RESOURCES + 40
