"""Engines without a model: they render prompts, keep "KV blocks" and "embeddings", and answer as vLLM does.

What matters is emulated strictly. A prompt is a list of token ids in which each medium is expanded from the
grid or the rows that the request really carried, so a wrong grid gives another prompt. An answer names the
pixels that *prefill* saw, so a swapped hand-over gives a wrong answer. KV parameters serve once. Shapes of
answers, chunks and errors are those of vLLM 0.32.0.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from mmdisagg_workers.contract import (
    CONTRACT_VERSION,
    Geometry,
    Limits,
    ModelInfo,
    Placeholder,
    ZeroEmbedding,
    decode_descriptor,
    family,
)

TOKEN = "stage-token-of-these-tests-0123456789"
MODEL = "shapes"
PAD = {"image": 900_001, "video": 900_002}
MERGE = 2
WIDTH = 128
LLAVA_TOKENS = 16
WORDS = ("I", " see", " ")


def model_info(role: str, topology: str, family_name: str = "Qwen2.5-VL", **changes: Any) -> ModelInfo:
    entry = family(family_name)
    placeholders = {m: Placeholder(PAD[m], text) for m, text in entry.placeholders.items()}
    facts: dict[str, Any] = {
        "family": family_name,
        "role": role,
        "topology": topology,
        "revision": "r1",
        "vllm_version": "0.32.0",
        "contract_version": CONTRACT_VERSION,
        "embedding_dtype": "float32",
        "geometry": Geometry(WIDTH, MERGE if entry.has_grid else None, placeholders),
        "limits": Limits(max_model_len=4096, images=8, videos=1, bytes=1_000_000, pixels=40_000_000),
    }
    return ModelInfo(**(facts | changes))


def picture(name: str, grid: tuple[int, int, int] = (1, 4, 4)) -> str:
    """A data URL whose "pixels" are a name and a size."""
    return f"data:image/png;base64,{name}.{'x'.join(map(str, grid))}"


def video(name: str, grid: tuple[int, int, int] = (2, 4, 4)) -> str:
    return f"data:video/mp4;base64,{name}.{'x'.join(map(str, grid))}"


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video_part(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def chat(*content: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    """A chat body with one user message; strings are text parts."""
    made = [text_part(part) if isinstance(part, str) else part for part in content]
    return {"model": MODEL, "messages": [{"role": "user", "content": made}], **fields}


def identity_of(url: str, arguments: Any = None) -> str:
    return hashlib.sha256(f"{url}{arguments or ''}".encode()).hexdigest()


def name_of(url: str) -> str:
    return re.split(r"[.,/]", url)[-2]


def grid_of(url: str) -> list[int]:
    match = re.search(r"(\d+)x(\d+)x(\d+)$", url)
    assert match, url
    return [int(part) for part in match.groups()]


@dataclass
class Recorded:
    """One request as an engine got it."""

    path: str
    headers: Any
    body: dict[str, Any]
    raw: bytes
    at: float
    finished: bool = False
    gone: bool = False


@dataclass
class World:
    """What the engines of one test share: embeddings, KV blocks, and pixels by identity."""

    embeddings: dict[str, str] = field(default_factory=dict)
    kv: dict[str, str] = field(default_factory=dict)
    pixels: dict[str, str] = field(default_factory=dict)
    ids: Any = field(default_factory=lambda: itertools.count(1))


Fault = Callable[["ScriptedEngine", web.Request, dict[str, Any]], Any]


class ScriptedEngine:
    """One engine of a role. `faults` are used up one per request, None meaning none."""

    def __init__(
        self, world: World, role: str, topology: str, family_name: str = "Qwen2.5-VL", token: str = TOKEN
    ) -> None:
        self.world = world
        self.role = role
        self.topology = topology
        self.family = family(family_name)
        self.info = model_info(role, topology, family_name)
        self.token = token
        self.recorded: list[Recorded] = []
        self.faults: list[Fault | None] = []
        self.tokens = 4
        self.pause = 0.0
        self.info_hold: asyncio.Event | None = None
        self.active = 0
        self.hold: asyncio.Event | None = None
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_get("/mmdisagg/v1/info", self._info)
        app.router.add_post("/v1/chat/completions", self._post)
        app.router.add_post("/v1/completions", self._post)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [record.body for record in self.recorded]

    async def _info(self, _: web.Request) -> web.Response:
        if self.info_hold is not None:
            await self.info_hold.wait()
        return web.Response(text=self.info.to_json(), content_type="application/json")

    async def _post(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        now = asyncio.get_running_loop().time()
        record = Recorded(request.path, request.headers.copy(), body, raw, now)
        self.recorded.append(record)
        if self.token and request.headers.get("x-mmdisagg-stage-token") != self.token:
            return error(401, "wrong stage token", "unauthorized")
        self.active += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
            fault = self.faults.pop(0) if self.faults else None
            if fault is not None:
                answer = fault(self, request, body)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer is not None:
                    return answer
            return await self.serve(request, body)
        except asyncio.CancelledError:
            record.gone = True
            raise
        finally:
            record.finished = True
            self.active -= 1

    async def serve(self, request: web.Request, body: dict[str, Any], **changes: Any) -> web.StreamResponse:
        try:
            prompt, seen = self._prompt(body)
        except KeyError as missing:
            return error(500, f"Internal server error {missing}", "InternalServerError")
        except ValueError as wrong:
            return error(400, str(wrong), "BadRequestError")
        answer = Answer(self, request, body, prompt, seen)
        for name, value in changes.items():
            setattr(answer, name, value)
        if self.role == "encode":
            return answer.encode()
        if self.role == "prefill":
            return answer.prefill()
        return await answer.generate()

    # -- prompts ------------------------------------------------------------------------------------

    def _prompt(self, body: dict[str, Any]) -> tuple[list[int], list[str]]:
        if "prompt" in body:
            prompt = body["prompt"]
            prompt = prompt[0] if isinstance(prompt, list) and isinstance(prompt[0], str) else prompt
            return ([ord(c) for c in prompt], []) if isinstance(prompt, str) else (prompt, [])
        ids: list[int] = [ord(c) for c in json.dumps(body.get("tools") or "")]
        seen: list[str] = []
        for message in body["messages"]:
            ids += [1, *map(ord, message["role"]), 2]
            content = message.get("content") or ""
            for part in [text_part(content)] if isinstance(content, str) else content:
                expanded, identity = self._part(part, body)
                ids += expanded
                seen += [identity] if identity else []
        return [*ids, 3], seen

    def _part(self, part: dict[str, Any], body: dict[str, Any]) -> tuple[list[int], str | None]:
        kind = part["type"]
        if kind == "text":
            return [ord(c) for c in part["text"]], None
        modality = kind.partition("_")[0]
        if kind.endswith("_url"):
            url = part[kind]["url"]
            if "broken" in url:
                raise ValueError("Failed to load image: image file is truncated (128 bytes not processed)")
            identity = identity_of(url, body.get("mm_processor_kwargs"))
            self.world.pixels[identity] = name_of(url)
            return self._expand(modality, grid_of(url)), identity
        return self._expand(modality, self._carried(modality, part, body)), part["uuid"]

    def _carried(self, modality: str, part: dict[str, Any], body: dict[str, Any]) -> list[int]:
        payload = part[part["type"]]
        if not self.family.has_grid:
            zeros = decode_descriptor(payload)
            assert isinstance(zeros, ZeroEmbedding)
            return [1, 1, zeros.shape[0] * MERGE * MERGE]
        grid = payload[f"{modality}_grid_thw"]
        if isinstance(grid, str):
            grid = list(decode_descriptor(grid).values)  # type: ignore[union-attr]
        if modality == "video" and "second_per_grid_ts" not in payload:
            raise ValueError("second_per_grid_ts is missing")
        if body.get("ec_transfer_params") is not None:
            self.world.embeddings[part["uuid"]]
        elif not (body.get("kv_transfer_params") or {}).get("do_remote_prefill"):
            raise ValueError("metadata without an embedding")
        return list(grid)

    def _expand(self, modality: str, grid: list[int]) -> list[int]:
        tokens = grid[0] * grid[1] * grid[2] // MERGE**2 if self.family.has_grid else LLAVA_TOKENS
        return [4, *[PAD[modality]] * tokens, 5]


@dataclass
class Answer:
    """The answer to one request; tests change single facts of it."""

    engine: ScriptedEngine
    request: web.Request
    body: dict[str, Any]
    prompt: list[int]
    seen: list[str]
    error_after: int | None = None
    error_code: int = 500
    cut_after: int | None = None
    end_after: int | None = None
    stall_after: int | None = None
    chop: int | None = None

    @property
    def _chat(self) -> bool:
        return self.request.path == "/v1/chat/completions"

    @property
    def _id(self) -> str:
        return ("chatcmpl-" if self._chat else "cmpl-") + self.request.headers.get("X-Request-Id", "made")

    def encode(self) -> web.Response:
        assert len(self.seen) == 1, "an encode leg has exactly one medium"
        self.engine.world.embeddings[self.seen[0]] = self.engine.world.pixels[self.seen[0]]
        return self._full(ec_transfer_params=self._report())

    def prefill(self) -> web.Response:
        request = self.body.get("kv_transfer_params") or {}
        if not request.get("do_remote_decode"):
            return error(400, "prefill without do_remote_decode", "BadRequestError")
        key = f"kv-{next(self.engine.world.ids)}"
        self.engine.world.kv[key] = self._sees()
        kv = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": "engine",
            "remote_request_id": key,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }
        reports = self.engine.topology == "EP/D" and self.seen
        return self._full(kv_transfer_params=kv, ec_transfer_params=self._report() if reports else None)

    async def generate(self) -> web.StreamResponse:
        kv = self.body.get("kv_transfer_params")
        text = self._sees()
        if kv is not None:
            text = self.engine.world.kv.pop(kv["remote_request_id"], "")
            if not text:
                return error(500, "Internal server error", "InternalServerError")
        if self.body.get("stream"):
            return await self._stream(text)
        return self._full(text=text)

    def _sees(self) -> str:
        names = [self.engine.world.pixels.get(identity, "?") for identity in self.seen]
        return "I see " + (" and ".join(names) or "text")

    def _report(self) -> dict[str, Any]:
        report: dict[str, Any] = {}
        for index, identity in enumerate(self.seen):
            entry = report.setdefault(identity, {"item_indices": [], "metadata": self._metadata(index)})
            entry["item_indices"].append(index)
        return report

    def _metadata(self, index: int) -> dict[str, Any]:
        urls = [
            (part["type"].partition("_")[0], part[part["type"]]["url"])
            for message in self.body["messages"]
            for part in (message["content"] if isinstance(message["content"], list) else [])
            if part["type"].endswith("_url")
        ]
        modality, url = urls[index]
        if not self.engine.family.has_grid:
            return {}
        timing = {"second_per_grid_ts": [2.0]} if modality == "video" else {}
        return {f"{modality}_grid_thw": grid_of(url), **timing}

    def _usage(self, generated: int) -> dict[str, Any]:
        prompt = len(self.prompt or ())
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def _full(self, text: str = "I", **transfer: Any) -> web.Response:
        ids = list(range(100, 100 + self.engine.tokens)) if self.body.get("return_token_ids") else None
        prompt = self.prompt if self.body.get("return_token_ids") else None
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        answer = {
            "id": self._id,
            "created": 1,
            "model": self.body["model"],
            "choices": [choice | {"token_ids": ids}],
            "usage": self._usage(self.engine.tokens),
            "system_fingerprint": "vllm-0.32.0",
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            **transfer,
        }
        if self._chat:
            answer |= {"object": "chat.completion", "prompt_token_ids": prompt}
            answer["choices"][0]["message"] = {"role": "assistant", "content": text}
        else:
            answer |= {"object": "text_completion"}
            answer["choices"][0] |= {"text": text, "prompt_token_ids": prompt}
        return web.json_response(answer)

    # -- streams, chunk by chunk as vLLM writes them ------------------------------------------------

    async def _stream(self, text: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(self.request)
        pieces = re.findall(r" ?\w+|.", text)
        if self._chat:
            await self._send(response, self._chunk(delta={"role": "assistant", "content": ""}, first=True))
        for index, piece in enumerate(pieces):
            if index == self.stall_after:
                await asyncio.sleep(3600)
            if index == self.end_after:
                return response
            if index == self.cut_after:
                self.request.transport.abort()  # type: ignore[union-attr]
                return response
            if index == self.error_after:
                await self._send(response, error_body(self.error_code, "Internal server error", "Error"))
                await response.write(b"data: [DONE]\n\n")
                return response
            await self._send(response, self._piece(piece, index, last=index == len(pieces) - 1))
            await asyncio.sleep(self.engine.pause)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            await self._send(response, self._frame() | {"choices": [], "usage": self._usage(len(pieces))})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
        step = self.chop or len(data)
        for start in range(0, len(data), step):
            await response.write(data[start : start + step])
            await asyncio.sleep(0)

    def _frame(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {"id": self._id, "object": kind, "created": 1, "model": self.body["model"]}

    def _chunk(self, delta: dict[str, Any], *, first: bool = False) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        wanted = self.prompt if self.body.get("return_token_ids") else None
        return self._frame() | {"choices": [choice]} | ({"prompt_token_ids": wanted} if first else {})

    def _piece(self, text: str, index: int, *, last: bool) -> dict[str, Any]:
        ids = [100 + index] if self.body.get("return_token_ids") else None
        end = {"finish_reason": "stop", "stop_reason": None} if last else {"finish_reason": None}
        if self._chat:
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None, **end, "token_ids": ids}
        else:
            prompt = self.prompt if self.body.get("return_token_ids") and index == 0 else None
            choice = {"index": 0, "text": text, "logprobs": None, **end}
            choice |= {"prompt_token_ids": prompt, "token_ids": ids}
        return self._frame() | {"choices": [choice]}


# -- errors and faults ------------------------------------------------------------------------------


def error_body(status: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error(status: int, message: str, kind: str) -> web.Response:
    return web.json_response(error_body(status, message, kind), status=status)


def fails(status: int, message: str = "Internal server error") -> Fault:
    """The engine answers an error."""
    return lambda engine, request, body: error(status, message, "Error")


def drops(engine: ScriptedEngine, request: web.Request, body: dict[str, Any]) -> web.Response:
    """The connection breaks before an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hangs(engine: ScriptedEngine, request: web.Request, body: dict[str, Any]) -> None:
    """The engine never answers."""
    await asyncio.sleep(3600)


def says(body: bytes) -> Fault:
    """The engine answers 200 with these bytes."""
    return lambda engine, request, _: web.Response(body=body, content_type="application/json")


def changed(**changes: Any) -> Fault:
    """The engine answers, with single facts of the answer changed."""
    return lambda engine, request, body: engine.serve(request, body, **changes)
