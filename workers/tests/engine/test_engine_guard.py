"""The middleware: token, body, and an application behind it that must see everything unchanged."""

import json

import pytest
from test_engine_guard_rules import EMBEDS, RAW, chat
from test_engine_settings import MINIMAL, TOKEN

from mmdisagg_workers.contract import (
    LEG_BYTES,
    STAGE_TOKEN_HEADER,
    TEXT_BYTES,
    Geometry,
    MediaLimits,
    Placeholder,
)
from mmdisagg_workers.engine import settings as names
from mmdisagg_workers.engine.guard import OPEN_PATHS, StageGuard
from mmdisagg_workers.engine.settings import geometry_to_json

GEOMETRY = geometry_to_json(Geometry(128, 2, {"image": Placeholder(12, "<|image_pad|>")}))
CHAT = "/v1/chat/completions"


class App:
    """Streams three chunks, and remembers what it was sent."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in (b"a", b"b", b""):
            await send({"type": "http.response.body", "body": chunk, "more_body": bool(chunk)})
        self.next = await receive()


class Client:
    """Sends one request through the guard, body in pieces, and keeps the messages that come back."""

    def __init__(self, app):
        self.guard = StageGuard(app)
        self.sent = []

    async def __call__(self, path, body=b"", token=TOKEN, method="POST", scope_type="http", piece=7):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        pieces = [content[i : i + piece] for i in range(0, len(content), piece)] or [b""]
        messages = [
            {"type": "http.request", "body": p, "more_body": i + 1 < len(pieces)}
            for i, p in enumerate(pieces)
        ]
        messages.append({"type": "http.disconnect"})
        headers = [] if token is None else [(STAGE_TOKEN_HEADER.encode(), token.encode())]
        scope = {"type": scope_type, "path": path, "method": method, "headers": headers}

        async def receive():
            return messages.pop(0)

        async def send(message):
            self.sent.append(message)

        await self.guard(scope, receive, send)
        return self.sent[0].get("status")

    @property
    def error(self):
        return json.loads(self.sent[1]["body"])["error"]


@pytest.fixture
def app():
    return App()


@pytest.fixture
def worker(monkeypatch):
    def configure(role="decode", topology="E/P/D", **variables):
        environ = MINIMAL | {names.ROLE: role, names.TOPOLOGY: topology, names.GEOMETRY: GEOMETRY}
        for name, value in (environ | {names.FAMILY: "Qwen2.5-VL"} | variables).items():
            monkeypatch.setenv(name, value)

    configure()
    return configure


@pytest.mark.parametrize("token", [None, "", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.usefixtures("worker")
async def test_without_the_token_nothing_is_answered(app, token, method):
    client = Client(app)
    assert await client(CHAT, chat(), token=token, method=method) == 401
    assert client.error["type"] == "authentication_error"
    assert app.bodies == []


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
@pytest.mark.usefixtures("worker")
async def test_probes_metrics_and_info_are_open(app, path):
    assert await Client(app)(path, token=None, method="GET") == 200


@pytest.mark.parametrize("path", ["/health/", "/metrics/x", "//health", "/v1/models", "/mmdisagg/v1/info/x"])
@pytest.mark.usefixtures("worker")
async def test_similar_paths_are_not_open(app, path):
    assert await Client(app)(path, token=None, method="GET") == 401


async def test_an_aggregated_worker_without_token_is_open(app, worker):
    worker(role="aggregated", **{names.STAGE_TOKEN: ""})
    assert await Client(app)(CHAT, chat(RAW), token=None) == 200


async def test_an_aggregated_worker_with_token_asks_for_it(app, worker):
    worker(role="aggregated")
    assert await Client(app)(CHAT, chat(RAW), token=None) == 401


@pytest.mark.usefixtures("worker")
async def test_an_accepted_request_reaches_the_application_byte_for_byte(app):
    content = json.dumps(chat()).encode() + b"  \n"
    client = Client(app)
    assert await client(CHAT, content) == 200
    assert app.bodies == [content]


@pytest.mark.usefixtures("worker")
async def test_a_stream_passes_chunk_by_chunk_and_the_disconnect_is_seen(app):
    client = Client(app)
    await client(CHAT, chat())
    assert [message.get("body") for message in client.sent[1:]] == [b"a", b"b", b""]
    assert app.next == {"type": "http.disconnect"}


@pytest.mark.case("x02")
@pytest.mark.usefixtures("worker")
async def test_a_violation_is_answered_and_goes_no_further(app):
    client = Client(app)
    assert await client(CHAT, chat(EMBEDS)) == 400
    assert client.error["param"] == "kv_transfer_params"
    assert app.bodies == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", '{"messages":[]}'.encode("utf-16"), b"NaN"])
@pytest.mark.usefixtures("worker")
async def test_a_body_that_is_no_json_is_refused(app, content):
    assert await Client(app)(CHAT, content) == 400
    assert app.bodies == []


async def test_a_body_larger_than_the_media_limits_is_refused(app, worker):
    worker(role="encode", **{names.MEDIA: '{"limits":{"bytes":10,"images":1,"videos":0}}'})
    client = Client(app)
    largest = MediaLimits(bytes=10, images=1, videos=0).leg_bytes(raw=True)
    assert await client(CHAT, b" " * (largest + 1), piece=2**16) == 413
    assert app.bodies == []


async def test_roles_that_take_descriptors_take_no_large_bodies(app, worker):
    worker(role="decode")
    assert Client(app).guard.max_body == TEXT_BYTES + LEG_BYTES
    worker(role="encode")
    assert Client(app).guard.max_body == MediaLimits().body_bytes + LEG_BYTES


@pytest.mark.usefixtures("worker")
async def test_websockets_are_closed(app):
    client = Client(app)
    await client("/v1/realtime", scope_type="websocket")
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.usefixtures("worker")
async def test_a_client_that_leaves_while_sending_is_no_error(app):
    client = Client(app)

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        client.sent.append(message)

    headers = [(STAGE_TOKEN_HEADER.encode(), TOKEN.encode())]
    scope = {"type": "http", "path": CHAT, "method": "POST", "headers": headers}
    await client.guard(scope, receive, send)
    assert client.sent == []
