"""What the router costs, against a plain relay on the same stack in the same run.

    python bench/router.py [--seconds 5] [-o json]

Three processes: scripted engines and load on one core, router or relay alone on the other. The relay
(`PlainRelay`) does the least that a front for two stages can do: it sends the client's bytes to prefill and
then to decode, and passes the stream on as it comes, without reading, checking or counting anything. Each
load is run against both, in turns; the ratio of processor time per request is what the router's checks cost,
and unlike requests per second it means something on a machine that does other things too.

Loads: closed loops of chats (text, or one inline picture), each answered by a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

import aiohttp
import uvloop
from aiohttp import web

from mmdisagg_workers.contract import CONTRACT_VERSION, Geometry, Limits, ModelInfo, Placeholder, family

MODEL = "bench"
TOKEN = "bench-stage-token-of-32-characters-or-more"
FAMILY = family("Qwen2.5-VL")
PAD = 7
PROMPT = [*range(100, 700), *[PAD] * 64]
TEXT_PROMPT = PROMPT[:600]
GRID = [1, 16, 16]
COUNTER = "counter0"
KV = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [list(range(20))],
    "remote_engine_id": "3f0c",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}


@dataclass(frozen=True)
class Load:
    """One kind of load.

    Attributes:
        name: for the table.
        streams: requests at once.
        chunks: tokens per answer.
        pause_ms: time between two tokens.
        picture_bytes: size of the inline picture, 0 for text.
    """

    name: str
    streams: int
    chunks: int
    pause_ms: float
    picture_bytes: int


LOADS = (
    Load("text, 32 streams of 64 tokens", 32, 64, 0, 0),
    Load("text, 256 streams of 64 tokens, 10 ms apart", 256, 64, 10, 0),
    Load("1 MB picture, 16 streams of 16 tokens", 16, 16, 0, 1_000_000),
)


@dataclass(frozen=True)
class Result:
    """What one front did under one load.

    Attributes:
        front: `router` or `relay`.
        load: name of the load.
        requests_per_s: answers completed per second.
        chunks_per_s: tokens passed on per second.
        first_token_ms: median time to the first token.
        first_token_p99_ms: 99th percentile of it.
        cpu_us_per_request: processor time of the front per answer.
        failures: answers that did not end in success.
    """

    front: str
    load: str
    requests_per_s: float
    chunks_per_s: float
    first_token_ms: float
    first_token_p99_ms: float
    cpu_us_per_request: float
    failures: int


# -- engines ---------------------------------------------------------------------------------------


class Engine(asyncio.Protocol):
    """All roles in one: answers as vLLM does, with as little work as possible."""

    def __init__(self, chunks: int, pause: float) -> None:
        self._chunks = chunks
        self._pause = pause
        self._received = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect a request and answer it."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        _, found, rest = head.partition(b"content-length: ")
        length = int(rest.split(b"\r\n", 1)[0]) if found else 0
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        self._received.clear()
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            role = head.split(b"x-role-", 1)[1].split(b"/", 1)[0] if b"x-role-" in head else b""
            self._json(json.loads(_info(role.decode()).to_json()))
        elif b'"stream":true' in body and b'do_remote_decode":true' not in body:
            self._begin_stream(ids=b"return_token_ids" in body, picture=b"image_" in body)
        elif b'do_remote_decode":true' in body or b"x-role-prefill" in head:
            prompt = PROMPT if b"image_" in body else TEXT_PROMPT
            self._json({"choices": [], "prompt_token_ids": prompt, "kv_transfer_params": KV})
        else:
            entry = {"item_indices": [0], "metadata": {"image_grid_thw": GRID}}
            identity = f"{hash(body) & (1 << 63) - 1:032x}"
            self._json(
                {"choices": [], "prompt_token_ids": PROMPT[-64:], "ec_transfer_params": {identity: entry}}
            )

    def _json(self, value: Any) -> None:
        body = json.dumps(value, separators=(",", ":")).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _begin_stream(self, *, ids: bool, picture: bool) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        delta = {"role": "assistant", "content": ""}
        prompt = {"prompt_token_ids": PROMPT if picture else TEXT_PROMPT} if ids else {}
        self._transport.write(head + _event(delta, None, **prompt))
        self._next(0, ids)

    def _next(self, index: int, ids: bool) -> None:
        if self._transport.is_closing():
            return
        if index == self._chunks:
            self._transport.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        self._transport.write(_event({"content": " word"}, [index] if ids else None))
        loop = asyncio.get_running_loop()
        if self._pause:
            loop.call_later(self._pause, self._next, index + 1, ids)
        else:
            loop.call_soon(self._next, index + 1, ids)


def _event(delta: dict[str, Any], ids: list[int] | None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": ids}
    chunk = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        **fields,
    }
    return _framed(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")


def _framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _info(role: str) -> ModelInfo:
    placeholders = {modality: Placeholder(PAD, text) for modality, text in FAMILY.placeholders.items()}
    return ModelInfo(
        family=FAMILY.name,
        role=role,
        topology="E/P/D",
        revision="bench",
        vllm_version="0.32.0",
        contract_version=CONTRACT_VERSION,
        embedding_dtype="float32",
        geometry=Geometry(1280, 2, {"image": placeholders["image"]}),
        limits=Limits(32768, 8, 1, 20 << 20, 40_000_000),
    )


async def serve_engines(port: int, chunks: int, pause: float) -> None:
    """Serve the engines until cancelled."""
    server = await asyncio.get_running_loop().create_server(lambda: Engine(chunks, pause), "127.0.0.1", port)
    await server.serve_forever()


# -- the plain relay -------------------------------------------------------------------------------


class PlainRelay:
    """Sends a request's bytes to prefill, then to decode, and passes the stream on."""

    def __init__(self, session: aiohttp.ClientSession, engine: str) -> None:
        self._session = session
        self._engine = engine

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Serve one chat."""
        body = await request.read()
        async with self._session.post(f"{self._engine}/x-role-prefill/v1/chat/completions", data=body) as leg:
            await leg.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with self._session.post(f"{self._engine}/v1/chat/completions", data=body) as leg:
            await response.prepare(request)
            while data := await leg.content.readany():
                await response.write(data)
        return response


async def serve_relay(port: int, engine: str) -> None:
    """Serve the relay until cancelled."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", PlainRelay(session, engine).chat)
        app.router.add_get("/ready", _ready)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        await asyncio.Event().wait()


async def _ready(_: web.Request) -> web.Response:
    return web.Response()


# -- load ------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Sends one request after another over one connection and times the answers."""

    def __init__(self, request: bytearray, first_tokens: list[float], done: list[bool]) -> None:
        self._request = request
        self._counter = request.find(COUNTER.encode())
        self._first_tokens = first_tokens
        self._done = done
        self._stop = False
        self._tail = b""
        self._good = False
        self._started = 0.0
        self._seen_first = False
        self._transport: asyncio.Transport
        self.finished = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Watch for the first token and for the end."""
        if not self._seen_first and b" word" in data:
            self._seen_first = True
            self._first_tokens.append(time.perf_counter() - self._started)
        window = self._tail + data
        self._good = self._good or b"[DONE]" in window
        self._tail = window[-64:]
        if window.endswith(b"0\r\n\r\n") or (b"Content-Length" in window and not self._seen_first):
            self._done.append(self._good)
            self._again()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if not self.finished.done():
            self.finished.set_result(None)

    def stop(self) -> None:
        """Send no further request."""
        self._stop = True

    def _again(self) -> None:
        if self._stop:
            self._transport.close()
        else:
            self._send()

    def _send(self) -> None:
        self._tail, self._good, self._seen_first = b"", False, False
        if self._counter >= 0:
            # A picture that was seen before would not be encoded again.
            self._request[self._counter : self._counter + 8] = b"%08x" % random.getrandbits(32)
        self._started = time.perf_counter()
        self._transport.write(bytes(self._request))


def _request(load: Load) -> bytearray:
    content: list[dict[str, Any]] = [{"type": "text", "text": "what is it? " * 40}]
    if load.picture_bytes:
        pixels = COUNTER + "A" * (load.picture_bytes * 4 // 3)
        content.insert(0, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}})
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "stream": True}
    data = json.dumps(body, separators=(",", ":")).encode()
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: b", f"Content-Length: {len(data)}", "", "")
    return bytearray("\r\n".join(lines).encode() + data)


async def run_load(load: Load, front: str, port: int, pid: int, seconds: float) -> Result:
    """Run one load for some seconds and return what came of it."""
    first_tokens: list[float] = []
    done: list[bool] = []
    loop = asyncio.get_running_loop()
    before, started = _cpu_seconds(pid), time.perf_counter()
    clients = []
    for _ in range(load.streams):
        _, client = await loop.create_connection(
            lambda: Client(_request(load), first_tokens, done), "127.0.0.1", port
        )
        clients.append(client)
    await asyncio.sleep(seconds)
    for client in clients:
        client.stop()
    await asyncio.gather(*(client.finished for client in clients))
    elapsed = time.perf_counter() - started
    cpu = _cpu_seconds(pid) - before
    good = sum(done)
    return Result(
        front=front,
        load=load.name,
        requests_per_s=round(good / elapsed, 1),
        chunks_per_s=round(good * load.chunks / elapsed),
        first_token_ms=round(statistics.median(first_tokens) * 1000, 1),
        first_token_p99_ms=round(statistics.quantiles(first_tokens, n=100)[98] * 1000, 1),
        cpu_us_per_request=round(cpu / max(good, 1) * 1e6),
        failures=len(done) - good,
    )


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the run ---------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(core: int, *arguments: str) -> Iterator[int]:
    """Run a command on one core and yield its process id."""
    environment = {**os.environ, "MMDISAGG_STAGE_TOKEN": TOKEN}
    child = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(child.pid, {core})
        yield child.pid
    finally:
        child.terminate()
        child.wait()


async def until_ready(url: str) -> None:
    """Wait until a front says that it is ready."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.1)


def measure(load: Load, front: str, seconds: float, cores: tuple[int, int]) -> Result:
    """Start engines and one front, run one load, stop them."""
    engine_port, port = free_port(), free_port()
    engine = f"http://127.0.0.1:{engine_port}"
    serve = {
        "relay": (__file__, "relay", str(port), engine),
        "router": (
            *("-m", "mmdisagg_workers.router.main", "--served-model", MODEL, "--port", str(port)),
            *(
                w
                for role in ("encode", "prefill", "decode")
                for w in (f"--{role}", f"{engine}/x-role-{role}")
            ),
        ),
    }
    pause = str(load.pause_ms / 1000)
    with (
        process(cores[1], __file__, "engines", str(engine_port), str(load.chunks), pause),
        process(cores[0], *serve[front]) as pid,
    ):
        os.sched_setaffinity(0, {cores[1]})
        for url in (f"{engine}/x-role-decode/ready", f"http://127.0.0.1:{port}/ready"):
            uvloop.run(until_ready(url))
        uvloop.run(run_load(load, front, port, pid, 1.0))
        return uvloop.run(run_load(load, front, port, pid, seconds))


def compare(seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Run every load against relay and router in turns; per load both medians and their ratio."""
    available = sorted(os.sched_getaffinity(0))
    cores = (available[0], available[-1])
    rows: list[dict[str, Any]] = []
    for load in LOADS:
        results: dict[str, list[Result]] = {"relay": [], "router": []}
        for _ in range(rounds):
            for front, made in results.items():
                made.append(measure(load, front, seconds, cores))
        row = {front: asdict(_median(made)) for front, made in results.items()}
        ratio = row["router"]["cpu_us_per_request"] / row["relay"]["cpu_us_per_request"]
        rows.append({"load": load.name, **row, "cpu_ratio": round(ratio, 2)})
    return rows


def _median(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.cpu_us_per_request)[len(results) // 2]


def _print(rows: list[dict[str, Any]]) -> None:
    columns = ("requests_per_s", "chunks_per_s", "first_token_ms", "first_token_p99_ms", "cpu_us_per_request")
    print(f"{'':>10}" + "".join(f"{column:>20}" for column in columns))
    for row in rows:
        print(row["load"])
        for front in ("relay", "router"):
            failures = row[front]["failures"]
            note = f"  {failures} failures" if failures else ""
            print(f"{front:>10}" + "".join(f"{row[front][column]:>20}" for column in columns) + note)
        print(f"{'router / relay, processor time per request:':>50} {row['cpu_ratio']}")


def main() -> None:
    """Run the benchmark, or one of its processes."""
    if len(sys.argv) > 1 and sys.argv[1] == "engines":
        return uvloop.run(serve_engines(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    if len(sys.argv) > 1 and sys.argv[1] == "relay":
        return uvloop.run(serve_relay(int(sys.argv[2]), sys.argv[3]))
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seconds", type=float, default=5.0, help="length of each run (default: %(default)g)")
    cli.add_argument("--rounds", type=int, default=1, help="runs per load and front (default: %(default)d)")
    cli.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = cli.parse_args()
    rows = compare(options.seconds, options.rounds)
    if options.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    return None


if __name__ == "__main__":
    main()
