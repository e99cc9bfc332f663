"""The media connector: tensors from descriptors, guarded fetching, broken media as client errors."""

import base64
import io
from urllib.parse import quote

import pytest
import torch
from PIL import Image
from test_engine_embeds_payload import bare_zeros, values, zeros
from test_engine_fetch_guard import body, served
from test_engine_settings import MINIMAL
from vllm.exceptions import VLLMUnprocessableEntityError, VLLMValidationError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from mmdisagg_workers.engine import media
from mmdisagg_workers.engine import settings as names
from mmdisagg_workers.engine.media import materialise

ALLOW_LOCAL = '{"allowedHosts":["127.0.0.1"],"allowPrivateNetworks":true,"limits":{"bytes":200000}}'


@pytest.fixture
def connector(monkeypatch):
    for name, value in (MINIMAL | {names.MEDIA: ALLOW_LOCAL}).items():
        monkeypatch.setenv(name, value)
    media.register()
    return MEDIA_CONNECTOR_REGISTRY.load("mmdisagg")


def picture(kind="PNG", size=64):
    content = io.BytesIO()
    Image.effect_noise((size, size), 80).convert("RGB").save(content, kind)
    return content.getvalue()


def data_url(content):
    return "data:image/png;base64," + base64.b64encode(content).decode()


def test_it_is_vllms_connector_by_another_name(connector):
    assert isinstance(connector, MediaConnector)


def test_zeros_are_made_on_the_worker():
    tensor = materialise(zeros())
    assert (tensor.shape, tensor.dtype) == ((64, 128), torch.float32)
    assert not tensor.any()
    assert materialise(bare_zeros(rows=16)).shape == (16, 128)


def test_values_are_spelled_out():
    assert torch.equal(materialise(values(1, 16, 16)), torch.tensor([1, 16, 16]))
    assert torch.equal(materialise(values(2.0, dtype="float32")), torch.tensor([2.0]))


@pytest.mark.parametrize("text", ["AAAA", "", "mmdisagg.v1:", "mmdisagg.v2:{}", None])
async def test_any_other_embedding_is_refused(connector, text):
    with pytest.raises(VLLMValidationError):
        connector.fetch_image_embedding(text)
    with pytest.raises(VLLMValidationError):
        await connector.fetch_image_embedding_async(text)
    with pytest.raises(VLLMValidationError):
        await connector.fetch_video_embedding_async(text)


async def test_a_pickled_tensor_is_refused(connector):
    content = io.BytesIO()
    torch.save(torch.zeros(4, 128), content)
    with pytest.raises(VLLMValidationError, match="descriptor"):
        await connector.fetch_image_embedding_async(base64.b64encode(content.getvalue()).decode())


async def test_audio_is_refused(connector):
    with pytest.raises(VLLMValidationError, match="audio"):
        await connector.fetch_audio_embedding_async(zeros())


async def test_embeddings_come_through_vllms_hooks(connector):
    assert (await connector.fetch_image_embedding_async(zeros())).shape == (64, 128)
    assert connector.fetch_video_embedding(zeros()).shape == (64, 128)


async def test_pictures_load_from_data_and_from_an_allowed_host(connector):
    content = picture()
    async with served(a=body(content)) as (base, hits):
        fetched = await connector.fetch_image_async(f"{base}/a")
    assert hits == ["/a"]
    assert fetched.size == (await connector.fetch_image_async(data_url(content))).size == (64, 64)


@pytest.mark.case("c03")
@pytest.mark.parametrize(
    "content",
    [
        picture("JPEG")[:-128],
        picture()[:3000],
        picture()[:20],
        b"no picture at all",
        b"",
        b"\x89PNG\r\n\x1a\n" * 9,
    ],
)
async def test_broken_pictures_are_the_clients_error(connector, content):
    async with served(a=body(content)) as (base, _):
        for url in (data_url(content), f"{base}/a"):
            with pytest.raises(VLLMValidationError, match="not readable"):
                await connector.fetch_image_async(url)


@pytest.mark.case("c03")
async def test_a_missing_picture_is_unprocessable(connector):
    async with served(a=body(b"", status=404)) as (base, hits):
        with pytest.raises(VLLMUnprocessableEntityError, match="HTTP 404"):
            await connector.fetch_image_async(f"{base}/a")
    assert hits == ["/a"]


@pytest.mark.case("c17")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://h/x",
        "http://169.254.169.254/",
        "http://10.0.0.1/",
        "x",
        "http://[",
        "//h/x",
    ],
)
async def test_forbidden_urls_are_the_clients_error(connector, url):
    with pytest.raises(VLLMValidationError):
        await connector.fetch_image_async(url)


@pytest.mark.parametrize(
    "url", ["data:image/png,xx", "data:image/png;base64", "data:image/png;base64,%%", "data:"]
)
async def test_malformed_data_urls_are_the_clients_error(connector, url):
    with pytest.raises(VLLMValidationError):
        await connector.fetch_image_async(url)


async def test_a_data_url_has_the_same_limit_as_a_download(connector):
    with pytest.raises(VLLMValidationError, match="200000 bytes"):
        await connector.fetch_image_async(data_url(b"x" * 210_000))


async def test_too_many_pixels_are_refused(connector, monkeypatch):
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", "1000")
    with pytest.raises(VLLMValidationError, match="pixels"):
        await connector.fetch_image_async(data_url(picture()))


def test_the_blocking_entry_point_fetches_nothing(connector):
    assert connector.fetch_image(data_url(picture())).size == (64, 64)
    with pytest.raises(VLLMValidationError, match="data URLs"):
        connector.fetch_image("http://127.0.0.1:9/" + quote("a"))
