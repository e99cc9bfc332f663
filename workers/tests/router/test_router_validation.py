"""What a client may send: each rule refused before any engine hears of the request."""

from __future__ import annotations

import base64
import json

import pytest
from scripted_engines import MODEL, chat, image_part, picture, text_part, video, video_part

from mmdisagg_workers.contract import FAMILIES, MediaLimits, Topology
from mmdisagg_workers.router.errors import InvalidRequestError, ModelNotFoundError
from mmdisagg_workers.router.validation import (
    Rules,
    check_chat,
    check_completion,
    parse_chat,
    parse_completion,
)

LIMITS = MediaLimits(images=3, videos=1, bytes=1000)
PAD = "<|image_pad|>"


def rules(topology="E/P/D", family="Qwen2.5-VL", limits=LIMITS):
    return Rules(MODEL, Topology(topology), FAMILIES[family], limits)


def check(body: dict, **options):
    return check_chat(parse_chat(json.dumps(body).encode()), rules(**options))


def refused(body: dict, **options) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        check(body, **options)
    assert caught.value.status == 400
    return caught.value


def messages(*made: dict) -> dict:
    return {"model": MODEL, "messages": list(made)}


def user(content) -> dict:
    return {"role": "user", "content": content}


def test_media_come_out_in_their_order():
    body = messages(
        user([image_part(picture("a")), text_part("x")]),
        user([video_part(video("v")), image_part(picture("b"))]),
    )

    found = check(body)

    assert [(medium.modality, medium.url) for medium in found] == [
        ("image", picture("a")),
        ("video", video("v")),
        ("image", picture("b")),
    ]


# -- what only the router and the engines may set ---------------------------------------------------


@pytest.mark.case("c25")
@pytest.mark.parametrize(
    "field", ["kv_transfer_params", "ec_transfer_params", "prompt_embeds", "priority", "uuid"]
)
@pytest.mark.parametrize("value", [{"a": 1}, None, 0, "../../x"])
def test_a_client_may_not_set(field, value):
    error = refused(chat("hi", **{field: value}))

    assert error.param == field
    assert error.code == "forbidden_field"


@pytest.mark.case("c25")
@pytest.mark.parametrize("value", ["../../x", "a" * 64, None])
def test_a_client_may_not_name_a_medium(value):
    error = refused(chat({**image_part(picture("a")), "uuid": value}))

    assert error.param == "messages[0].content[0].uuid"
    assert error.code == "forbidden_field"


@pytest.mark.case("c25")
@pytest.mark.parametrize("kind", ["image_embeds", "video_embeds", "audio_embeds", "prompt_embeds"])
def test_a_client_may_not_send_embeddings(kind):
    error = refused(chat({"type": kind, kind: "AAAA"}))

    assert kind in error.message
    assert error.code == "forbidden_field"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": {"url": "data:"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "image_pil", "image_pil": "x"},
        {"type": "file", "file": {}},
        {"image_url": {"url": "https://x/y.png"}},
        {"type": "image_url", "image_url": "https://x/y.png"},
        {"type": "text", "text": 5},
        "bare text",
        7,
    ],
)
def test_other_parts_are_refused(part):
    body = messages(user([part]))

    assert refused(body).param.startswith("messages[")


@pytest.mark.parametrize(
    "field", ["echo", "prompt_logprobs", "use_beam_search", "chat_template", "vllm_xargs", "functions"]
)
def test_fields_that_cannot_be_served_are_refused_with_a_reason(field):
    error = refused(chat("hi", **{field: 1}))

    assert error.code == "unsupported_field"
    assert field in error.message


def test_an_unknown_field_is_refused_by_name():
    error = refused(chat("hi", temprature=0.5))

    assert error.param == "temprature"
    assert error.code == "unknown_field"


def test_an_unknown_field_inside_a_message_is_refused_with_its_path():
    error = refused(messages({"role": "user", "content": "hi", "tone": "angry"}))

    assert error.param.endswith(".tone")
    assert error.param.startswith("messages[")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"messages": []}, "messages"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_wrong_value_is_refused_by_name(fields, param):
    assert refused(chat("hi") | fields).param == param


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"x"', b'{"model":"\\ud800"}', b"[" * 100_000, b'{"seed":NaN}'],
)
def test_what_is_no_json_object_is_refused(data):
    with pytest.raises(InvalidRequestError):
        parse_chat(data)


@pytest.mark.case("c05")
def test_another_models_name_is_404():
    with pytest.raises(ModelNotFoundError) as caught:
        check(chat("hi") | {"model": "gpt-4"})

    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert MODEL in caught.value.message


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.case("c18")
def test_too_many_pictures_are_refused_with_the_limit():
    error = refused(chat(*[image_part(picture(f"p{i}")) for i in range(500)]))

    assert "500" in error.message
    assert "at most 3" in error.message
    assert "media.limits.images" in error.message


def test_too_many_videos_are_refused_with_the_limit():
    error = refused(chat(video_part(video("a")), video_part(video("b"))))

    assert "media.limits.videos" in error.message


def test_as_many_pictures_as_the_limit_says_pass():
    assert len(check(chat(*[image_part(picture(f"p{i}")) for i in range(3)]))) == 3


@pytest.mark.case("c05")
@pytest.mark.parametrize("limits", [MediaLimits(images=0, videos=0)])
def test_a_text_only_deployment_refuses_pictures(limits):
    error = refused(chat(image_part(picture("a"))), limits=limits)

    assert error.code == "unsupported_media"


@pytest.mark.case("c21")
def test_a_family_without_video_refuses_it():
    assert refused(chat(video_part(video("a"))), family="LLaVA").code == "unsupported_media"


def test_a_large_inline_picture_is_refused_with_the_limit():
    error = refused(chat(image_part("data:image/png;base64," + "A" * 4000)))

    assert error.code == "media_too_large"
    assert "1000" in error.message


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_the_limit_counts_the_bytes_of_the_picture_not_of_its_encoding(size, over):
    url = "data:image/png;base64," + base64.b64encode(b"x" * (size + over)).decode()

    def check_it():
        check(chat(image_part(url)), limits=MediaLimits(bytes=size))

    if over:
        with pytest.raises(InvalidRequestError, match=f"{size + 1} bytes"):
            check_it()
    else:
        check_it()


@pytest.mark.case("c17")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://x/y",
        "FILE:///etc/passwd",
        "/etc/passwd",
        "",
        "gopher:x",
        " http://x/",
        "javascript:1",
        "s3://bucket/x",
    ],
)
def test_other_schemes_are_refused(url):
    assert "scheme" in refused(chat(image_part(url))).message


@pytest.mark.parametrize("url", ["http://x/a.png", "HTTPS://x/a.png", "data:image/png;base64,AAAA"])
def test_web_and_inline_urls_pass(url):
    assert check(chat(image_part(url)))[0].url == url


# -- placeholders in text --------------------------------------------------------------------------

_ESCAPED = json.dumps({"a": PAD}).replace("<", "\\u003c")


@pytest.mark.case("t12")
@pytest.mark.parametrize(
    "body",
    [
        messages(user(f"look: {PAD}")),
        messages(user([text_part(PAD)])),
        messages(user([text_part("<|image_"), text_part("pad|>")])),
        messages({"role": "system", "content": PAD}, user("hi")),
        messages(user("hi"), {"role": "assistant", "content": PAD}, user("hi")),
        messages(user("hi"), {"role": "assistant", "refusal": PAD}, user("hi")),
        messages(user("hi"), {"role": "assistant", "content": [{"type": "refusal", "refusal": PAD}]}),
        messages(user("hi"), {"role": "assistant", "content": "x", "reasoning": PAD}),
        messages(user("hi"), {"role": "assistant", "content": "x", "reasoning_content": PAD}),
        messages({"role": "tool", "tool_call_id": "1", "content": PAD}),
        messages({"role": "tool", "tool_call_id": PAD, "content": "x"}),
        messages({"role": "user", "name": PAD, "content": "x"}),
        messages(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": _ESCAPED}}
                ],
            }
        ),
        messages(
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": PAD, "arguments": "{}"}}],
            }
        ),
        chat("hi", tools=[{"type": "function", "function": {"name": "f", "description": PAD}}]),
        chat(
            "hi",
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {PAD: {}}}}}],
        ),
        chat("hi", chat_template_kwargs={"note": [PAD]}),
        chat("hi", documents=[{"text": PAD}]),
        chat("hi", image_part(picture("a")), "<|video_pad|>"),
    ],
)
def test_a_literal_placeholder_is_refused_wherever_text_reaches_the_prompt(body):
    assert refused(body).code == "reserved_token"


@pytest.mark.case("t12")
def test_pieces_of_a_placeholder_around_a_picture_pass():
    check(messages(user([text_part("<|image_"), image_part(picture("a")), text_part("pad|>")])))


def test_the_placeholder_of_another_family_passes():
    check(chat("the tag <image> of HTML"))
    assert refused(chat("the tag <image>"), family="LLaVA").code == "reserved_token"


def test_a_placeholder_inside_a_url_passes():
    check(chat(image_part("https://x/<|image_pad|>.png")))


# -- sequences -------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["E/P/D", "EP/D"])
def test_several_sequences_are_refused_where_kv_blocks_serve_one(topology):
    assert refused(chat("hi", n=2), topology=topology).param == "n"
    check(chat("hi", n=1), topology=topology)


@pytest.mark.parametrize("topology", ["E/PD", "PD"])
def test_several_sequences_pass_where_decode_prefills_itself(topology):
    check(chat("hi", n=2), topology=topology)


# -- completions -----------------------------------------------------------------------------------


def completion(prompt, **fields):
    body = parse_completion(json.dumps({"model": MODEL, "prompt": prompt, **fields}).encode())
    check_completion(body, rules())


@pytest.mark.parametrize("prompt", ["hello", ["hello"]])
def test_a_text_prompt_passes(prompt):
    completion(prompt)


@pytest.mark.case("t01")
@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3]], ["a", 1], None, 5])
def test_token_ids_as_prompt_are_refused(prompt):
    with pytest.raises(InvalidRequestError) as caught:
        completion(prompt)

    assert caught.value.param.startswith("prompt")
    assert "token ids are refused" in caught.value.message


@pytest.mark.parametrize("prompt", [[], ["a", "b"]])
def test_one_prompt_per_request(prompt):
    with pytest.raises(InvalidRequestError, match="one per request"):
        completion(prompt)


@pytest.mark.case("t12")
def test_a_placeholder_in_a_prompt_is_refused():
    with pytest.raises(InvalidRequestError) as caught:
        completion(f"a {PAD} b")

    assert caught.value.code == "reserved_token"


@pytest.mark.case("c25")
@pytest.mark.parametrize("field", ["kv_transfer_params", "prompt_embeds", "priority", "echo", "suffix"])
def test_a_completion_may_not_set(field):
    with pytest.raises(InvalidRequestError) as caught:
        completion("hi", **{field: 1})

    assert caught.value.param == field


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_pixels": 40_000_001},
        {"max_pixels": 10**30},
        {"size": {"height": 7000, "width": 7000}},
        {"size": {"shortest_edge": 50_000_000}},
        {"images_kwargs": {"min_pixels": 1e300}},
        {"sizes": [1, [2, 50_000_000]]},
    ],
)
@pytest.mark.parametrize("field", ["mm_processor_kwargs", "media_io_kwargs"])
def test_processor_arguments_cannot_blow_a_picture_up(field, arguments):
    wrapped = {"image": arguments} if field == "media_io_kwargs" else arguments
    body = messages(user([image_part(picture("a"))])) | {field: wrapped}
    assert "media.limits.pixels" in refused(body).message
    assert refused(body).param == field


def test_processor_arguments_within_the_limits_pass():
    arguments = {"max_pixels": 3136, "size": {"height": 56, "width": 56}, "do_resize": True, "mode": "RGB"}
    assert check(messages(user([image_part(picture("a"))])) | {"mm_processor_kwargs": arguments})
