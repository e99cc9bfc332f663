"""Operators as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from aiohttp.test_utils import unused_port
from kube import until

RESYNC_SECONDS = 15
"""How often the operator that most tests share looks at everything."""


class Operator:
    """One operator process."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *arguments: str,
        identity: str = "",
        lease_namespace: str = "default",
    ):
        self.port, self.log = unused_port(), log
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": lease_namespace,
            "POD_NAME": identity,
            "PYTHONUNBUFFERED": "1",
        }
        self.command = [
            *(sys.executable, "-m", "mmdisagg_operator.main"),
            *("--port", str(self.port), "--worker-image", "worker:1", "--router-image", "router:1"),
            *arguments,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Operator:
        """Start it unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return self
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log)
        return self

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it; returns the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(30)

    def end(self) -> None:
        """End it if it runs, and show its log if it did not end well."""
        if self.process is not None and self.stop() not in (0, -signal.SIGKILL):
            print(self.log.read_text()[-4000:])

    def metric(self, name: str, without: str = "-") -> float:
        """Return the sum of a metric's values, over all labels that do not contain `without`."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = (line for line in lines if line.split("{")[0].split(" ")[0] == name and without not in line)
        return sum(float(line.split()[-1]) for line in found)

    def writes(self) -> float:
        """Return how many requests changed something, its Lease apart."""
        return self.metric("mmdisagg_operator_api_writes_total", without='"Lease"')

    def answers(self) -> bool:
        """Whether it serves its metrics."""
        try:
            return self.metric("mmdisagg_operator_leader") >= 0
        except OSError:
            return False

    def leads(self) -> bool:
        try:
            return self.metric("mmdisagg_operator_leader") == 1
        except OSError:
            return False

    def wait_until_it_leads(self) -> Operator:
        until(f"leader ({self.log})", self.leads)
        return self

    def rounds(self, number: int, seconds: float) -> None:
        """Wait for so many more rounds."""
        before = self.metric("mmdisagg_operator_reconciles_total")
        until(
            f"{number} rounds",
            lambda: self.metric("mmdisagg_operator_reconciles_total") >= before + number,
            seconds,
        )

    def memory_mib(self) -> float:
        """Return its resident memory."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def is_quiet(self, seconds: float = 1.0) -> None:
        """Wait until it has done nothing for a while."""
        last, since = self.metric("mmdisagg_operator_reconciles_total"), time.monotonic()
        while time.monotonic() - since < seconds:
            time.sleep(0.1)
            now = self.metric("mmdisagg_operator_reconciles_total")
            if now != last:
                last, since = now, time.monotonic()
