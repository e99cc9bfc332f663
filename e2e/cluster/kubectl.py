"""The cluster as its users see it: kubectl, and a port of this machine that leads to a Service."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed import deadline

Json = dict[str, Any]


def until(what: str, condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return what `condition` returns once that is true; a refusal of kubectl's is a no."""
    return deadline.until(what, condition, seconds=seconds, pause=0.3, excused=(Refused,))


class Refused(AssertionError):
    """kubectl failed; the text is its own."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a cluster and, mostly, a namespace."""

    command: tuple[str, ...]

    def inside(self, namespace: str) -> Kubectl:
        """The same, in a namespace."""
        return replace(self, command=(*self.command, f"--namespace={namespace}"))

    def __call__(self, *words: str, stdin: Any = None) -> str:
        """Run a command that must succeed; `stdin` is a manifest. Returns what it printed."""
        text = None if stdin is None else json.dumps(stdin)
        done = subprocess.run(
            [*self.command, *words], input=text, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise Refused(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *words: str) -> Json:
        return json.loads(self("get", *words, "--output=json"))

    def items(self, kinds: str, *words: str) -> list[Json]:
        return self.get(kinds, *words)["items"]

    def names(self, kinds: str, *words: str) -> set[str]:
        """The names of objects, each as `kind/name`."""
        return set(self("get", kinds, *words, "--output=name").split())

    def apply(self, *manifests: Json) -> None:
        self(
            "apply",
            "--server-side",
            "--filename=-",
            stdin={"apiVersion": "v1", "kind": "List", "items": manifests},
        )


class Outside:
    """A URL on this machine that leads to a Service's pod; another pod's when that one has gone."""

    def __init__(self, kubectl: Kubectl, service: str) -> None:
        self._command = [
            *kubectl.command,
            "port-forward",
            "--address=127.0.0.1",
            f"service/{service}",
            ":8000",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        self._one_at_a_time = threading.Lock()

    @property
    def url(self) -> str:
        with self._one_at_a_time:
            if self._process is None or self._process.poll() is not None:
                self._open()
            return self._url

    def _open(self) -> None:
        self.close()
        # A file: it writes a line for each connection, and would stop when nobody reads a pipe.
        self._said = tempfile.NamedTemporaryFile("w")  # noqa: SIM115
        self._process = subprocess.Popen(self._command, stdout=self._said, stderr=subprocess.STDOUT)
        self._url = f"http://127.0.0.1:{until('a way in', self._port, 30)}"

    def _port(self) -> str:
        said = Path(self._said.name).read_text()
        assert self._process is not None
        assert self._process.poll() is None, f"no way in: {said}"
        found = re.search(r"127\.0\.0\.1:(\d+)", said)
        return found[1] if found else ""

    def close(self) -> None:
        """End the forwarding."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._said.close()

    def __enter__(self) -> Outside:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
