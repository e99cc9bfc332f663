"""Any body at all: an error in the shape of the OpenAI API, or legs that carry only what they may."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from scripted_engines import MODEL, identity_of, model_info, picture, video

from mmdisagg_workers.contract import FAMILIES, DecodeForm, MediaLimits, Medium, Topology
from mmdisagg_workers.router import legs
from mmdisagg_workers.router.body import ChatBody, CompletionBody
from mmdisagg_workers.router.errors import RouterError
from mmdisagg_workers.router.legs import EncodedMedia, EncodedMedium, Model
from mmdisagg_workers.router.validation import (
    Rules,
    check_chat,
    check_completion,
    parse_chat,
    parse_completion,
)

KV = {"do_remote_prefill": True}
LIMITS = MediaLimits(images=4, videos=1, bytes=10_000)
PADS = [text for family in FAMILIES.values() for text in family.placeholders.values()]
FORBIDDEN = ["uuid", "kv_transfer_params", "ec_transfer_params", "prompt_embeds", "priority", "vllm_xargs"]
MAY_APPEAR = {
    "encode": {
        "model",
        "messages",
        "max_tokens",
        "stream",
        "return_token_ids",
        "mm_processor_kwargs",
        "media_io_kwargs",
    },
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(max_size=12) | st.sampled_from([*PADS, "<|image_", "pad|>", "hello"])
urls = st.sampled_from([picture("a"), picture("b"), video("c"), "https://x/y.png", "file:///etc/passwd", ""])
parts = (
    st.fixed_dictionaries({"type": st.just("text"), "text": texts})
    | st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": urls})})
    | st.fixed_dictionaries({"type": st.just("video_url"), "video_url": st.fixed_dictionaries({"url": urls})})
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["image_embeds", "prompt_embeds", "audio_url"]), "image_embeds": anything}
    )
    | anything
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant", "tool"]),
            "content": texts | st.lists(parts, max_size=4),
        },
        optional={"name": texts, "tool_calls": anything, "uuid": texts},
    )
    | anything,
    max_size=3,
)
good_messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system"]),
            "content": st.text(max_size=9)
            | st.lists(
                st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)})
                | st.fixed_dictionaries(
                    {
                        "type": st.just("image_url"),
                        "image_url": st.fixed_dictionaries({"url": st.just(picture("a"))}),
                    }
                ),
                max_size=4,
            ),
        }
    ),
    min_size=1,
    max_size=3,
)
names = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *FORBIDDEN, "other"})
fields = st.dictionaries(st.sampled_from(names), scalars | anything, max_size=4)
sane = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "max_tokens": st.integers(1, 99),
        "min_tokens": st.integers(0, 99),
        "stream": st.booleans(),
        "n": st.just(1),
        "logprobs": st.booleans(),
        "cache_salt": st.text(min_size=1, max_size=9),
        "stop": st.lists(st.text(max_size=3), max_size=2),
        "mm_processor_kwargs": st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    },
)
bodies = st.builds(
    lambda m, f, s, model: {"model": model, "messages": m, **s, **f},
    messages | good_messages,
    st.just({}) | fields,
    sane,
    st.just(MODEL) | st.text(max_size=5),
)


def encoded(media) -> EncodedMedia:
    made = []
    for one in media:
        timing = (2.0,) if one.modality == "video" else None
        grid = (2, 4, 4) if one.modality == "video" else (1, 4, 4)
        medium = Medium(one.modality, identity_of(one.url), 8 if timing else 4, grid, timing)
        made.append(EncodedMedium(medium, {"metadata": {}}))
    return EncodedMedia.gathered(made)


def assert_openai_error(error: RouterError) -> None:
    body = json.loads(error.json())["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    assert 400 <= error.status < 500
    assert body["message"]


def all_legs(request: ChatBody, media) -> list[legs.Leg]:
    made = [legs.encode_leg(request, medium) for medium in media]
    for form in (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY):
        model = Model(FAMILIES["Qwen2.5-VL"], model_info("prefill", "E/P/D"), form)
        made.append(legs.prefill_leg(request, model, encoded(media)))
        made.append(legs.decode_leg(request, model, encoded(media), KV))
        made.append(legs.generate_leg(request, model, encoded(media)))
    return [*made, legs.prefill_raw_leg(request, media), legs.generate_raw_leg(request, media)]


@given(bodies, st.sampled_from(list(Topology)))
def test_a_chat_is_refused_cleanly_or_makes_valid_legs(body, topology):
    rules = Rules(MODEL, topology, FAMILIES["Qwen2.5-VL"], LIMITS)
    try:
        request = parse_chat(json.dumps(body).encode())
        media = check_chat(request, rules)
    except RouterError as error:
        assert_openai_error(error)
        return

    assert not set(FORBIDDEN) & body.keys()
    for leg in all_legs(request, media):
        sent = json.loads(leg.body)
        assert sent["model"] == MODEL
        assert not {"prompt_embeds", "priority", "vllm_xargs", "uuid", "metadata", "store"} & sent.keys()
        if leg.role == "encode":
            assert sent.keys() <= MAY_APPEAR["encode"]
        if leg.role in ("encode", "prefill"):
            assert sent["max_tokens"] == 1
            assert sent["stream"] is False
        text = json.dumps(sent["messages"], ensure_ascii=False)
        assert leg.role != "decode" or not any(pad in text for pad in ("<|image_pad|>", "<|video_pad|>"))


@given(
    st.builds(
        lambda prompt, f: {"model": MODEL, "prompt": prompt, **f},
        texts | anything,
        st.just({}) | fields,
    )
)
def test_a_completion_is_refused_cleanly_or_makes_valid_legs(body):
    rules = Rules(MODEL, Topology.E_P_D, FAMILIES["Qwen2.5-VL"], LIMITS)
    try:
        request = parse_completion(json.dumps(body).encode())
        check_completion(request, rules)
    except RouterError as error:
        assert_openai_error(error)
        return

    prefill = json.loads(legs.completion_prefill_leg(request).body)
    decode = json.loads(legs.completion_leg(request, KV).body)
    assert prefill["prompt"] == decode["prompt"] == request.prompt
    assert prefill["max_tokens"] == 1
    assert not set(FORBIDDEN) - {"kv_transfer_params"} & decode.keys()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(data):
    for parse in (parse_chat, parse_completion):
        try:
            parse(data)
        except RouterError as error:
            assert_openai_error(error)
