"""Plays a role for the tests: answers like an engine or the router, or misbehaves as `behaviour.json` beside it says.

Known keys, per role: `ready_after` seconds, `exit_after` seconds and `exit_code`, `ignore_sigterm`, `child` (a child
process that ignores SIGTERM), `shared_memory` (the name of a file under /dev/shm to map), `answer` and `status` of a
chat request. Standard library only, so that it starts in an instant.
"""

import hashlib
import json
import mmap
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(sys.argv[0]).parent
ARGUMENTS = sys.argv[1:]


def argument(name: str, default: str) -> str:
    return ARGUMENTS[ARGUMENTS.index(name) + 1] if name in ARGUMENTS else default


ROLE = "router" if sys.argv[0].endswith("router") else argument("--role", "?")
BEHAVIOUR = json.loads((HERE / "behaviour.json").read_text()).get(ROLE, {})
STARTED = time.monotonic()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = time.monotonic() - STARTED >= BEHAVIOUR.get("ready_after", 0)
        self.answer(200 if ready and self.path in ("/health", "/ready") else 503, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        messages = json.dumps(json.loads(body)["messages"])
        text = BEHAVIOUR.get("answer") or hashlib.sha256(messages.encode()).hexdigest()
        status = BEHAVIOUR.get("status", 200)
        self.answer(status, completion(text) if status == 200 else {"error": {"message": "the fake refuses"}})

    def answer(self, status: int, document: dict) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.send_header("server-timing", "encode;dur=12.5, prefill;dur=30, decode;dur=41.2")
        self.send_header("x-mmdisagg-decode-bytes", str(BEHAVIOUR.get("decode_bytes", 700)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: object) -> None:
        pass


def completion(text: str) -> dict:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
        "token_ids": [ord(letter) for letter in text[:8]],
    }
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "fake", "choices": [choice]}


def stubborn_child() -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)


def map_shared_memory(name: str) -> mmap.mmap:
    with open(f"/dev/shm/{name}", "w+b") as segment:
        segment.truncate(4096)
        return mmap.mmap(segment.fileno(), 4096)


def exit_later() -> None:
    time.sleep(BEHAVIOUR["exit_after"])
    print("ValueError: the fake engine cannot go on", flush=True)
    os._exit(BEHAVIOUR.get("exit_code", 3))


def main() -> None:
    if BEHAVIOUR.get("child"):
        stubborn_child()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVIOUR.get("ignore_sigterm") else signal.SIG_DFL)
    segment = map_shared_memory(BEHAVIOUR["shared_memory"]) if "shared_memory" in BEHAVIOUR else None
    if "exit_after" in BEHAVIOUR:
        threading.Thread(target=exit_later, daemon=True).start()
    print("INFO 11-30 [gpu_model_runner.py:1] Starting to load model /models/fake...", flush=True)
    with ThreadingHTTPServer(("127.0.0.1", int(argument("--port", "0"))), Server) as server:
        server.serve_forever()
    del segment


main()
