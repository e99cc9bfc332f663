"""The legs of every topology, as pure functions of the client's body and the media."""

from __future__ import annotations

import json

import pytest
from scripted_engines import (
    LLAVA_TOKENS,
    MODEL,
    WIDTH,
    chat,
    identity_of,
    image_part,
    model_info,
    picture,
    video,
    video_part,
)

from mmdisagg_workers.contract import DecodeForm, Medium, cache_salt, decode_descriptor, family
from mmdisagg_workers.router import legs
from mmdisagg_workers.router.legs import EncodedMedia, EncodedMedium, Model
from mmdisagg_workers.router.validation import chat_media, parse_chat, parse_completion

KV = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[1]]}
RED, BLUE, GREEN = picture("red", (1, 4, 4)), picture("blue", (1, 4, 8)), picture("green", (1, 8, 4))
GRIDS = {RED: (1, 4, 4), BLUE: (1, 4, 8), GREEN: (1, 8, 4)}


def qwen(form: DecodeForm = DecodeForm.ZERO_EMBEDDING) -> Model:
    return Model(family("Qwen2.5-VL"), model_info("prefill", "E/P/D"), form)


def llava(form: DecodeForm = DecodeForm.EXPANDED_PROMPT) -> Model:
    return Model(family("LLaVA"), model_info("prefill", "E/P/D", "LLaVA"), form)


def encoded(*urls: str) -> EncodedMedia:
    def one(url: str) -> EncodedMedium:
        grid = GRIDS[url]
        tokens = grid[0] * grid[1] * grid[2] // 4
        medium = Medium("image", identity_of(url), tokens, grid)
        return EncodedMedium(medium, {"item_indices": [0], "metadata": {"image_grid_thw": list(grid)}})

    return EncodedMedia.gathered([one(url) for url in urls])


def encoded_llava(*urls: str) -> EncodedMedia:
    media = [Medium("image", identity_of(url), LLAVA_TOKENS) for url in urls]
    return EncodedMedia.gathered([EncodedMedium(m, {"item_indices": [0], "metadata": {}}) for m in media])


def body(*content, **fields):
    return parse_chat(json.dumps(chat(*content, **fields)).encode())


def sent(leg: legs.Leg) -> dict:
    return json.loads(leg.body)


def parts(leg: legs.Leg) -> list[dict]:
    return sent(leg)["messages"][0]["content"]


# -- encode ----------------------------------------------------------------------------------------


def test_an_encode_leg_carries_one_raw_medium_and_nothing_of_the_chat():
    request = body(
        "secret words",
        image_part(RED),
        tools=[{"type": "function", "function": {"name": "f"}}],
        temperature=0.5,
    )

    leg = legs.encode_leg(request, chat_media(request)[0])

    assert sent(leg) == {
        "model": MODEL,
        "messages": [{"role": "user", "content": [image_part(RED)]}],
        "max_tokens": 1,
        "stream": False,
        "return_token_ids": True,
    }


@pytest.mark.case("c25")
def test_processor_arguments_reach_encode_and_no_other_leg():
    arguments = {"mm_processor_kwargs": {"max_pixels": 9}, "media_io_kwargs": {"video": {"fps": 1}}}
    request = body(image_part(RED), **arguments)
    media, model = encoded(RED), qwen()

    encode = sent(legs.encode_leg(request, chat_media(request)[0]))

    assert {name: encode[name] for name in arguments} == arguments
    later = [
        legs.prefill_leg(request, model, media),
        legs.decode_leg(request, model, media, KV),
        legs.generate_leg(request, model, media),
    ]
    for leg in later:
        assert not arguments.keys() & sent(leg).keys()


def test_processor_arguments_go_with_the_raw_media_where_no_role_encodes_apart():
    request = body(image_part(RED), mm_processor_kwargs={"max_pixels": 9})
    media = chat_media(request)

    assert sent(legs.prefill_raw_leg(request, media))["mm_processor_kwargs"] == {"max_pixels": 9}
    assert sent(legs.generate_raw_leg(request, media))["mm_processor_kwargs"] == {"max_pixels": 9}
    text = body("hello", mm_processor_kwargs={"max_pixels": 9})
    assert "mm_processor_kwargs" not in sent(legs.prefill_raw_leg(text, []))


# -- prefill ---------------------------------------------------------------------------------------


@pytest.mark.case("c04")
def test_prefill_generates_one_token_whatever_the_client_asked():
    request = body(
        image_part(RED),
        max_tokens=700,
        max_completion_tokens=800,
        min_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
        n=1,
        temperature=0.3,
        stop=["x"],
        response_format={"type": "json_object"},
        structured_outputs={"regex": "a"},
    )

    prefill = sent(legs.prefill_leg(request, qwen(), encoded(RED)))

    assert prefill.keys() == {
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "stream",
        "kv_transfer_params",
        "ec_transfer_params",
        "return_token_ids",
    }
    assert (prefill["max_tokens"], prefill["max_completion_tokens"], prefill["stream"]) == (1, 1, False)


@pytest.mark.case("c04")
def test_what_shapes_the_prompt_reaches_prefill_and_decode_alike():
    shaping = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "chat_template_kwargs": {"enable_thinking": False},
        "documents": [{"title": "t", "text": "x"}],
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
        "reasoning_effort": "low",
    }
    request = body(image_part(RED), **shaping)

    for leg in (
        legs.prefill_leg(request, qwen(), encoded(RED)),
        legs.prefill_raw_leg(request, chat_media(request)),
        legs.decode_leg(request, qwen(), encoded(RED), KV),
        legs.generate_leg(request, qwen(), encoded(RED)),
        legs.generate_raw_leg(request, chat_media(request)),
    ):
        assert {name: sent(leg)[name] for name in shaping} == shaping


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "none"),
        ({"type": "function", "function": {"name": "f"}}, "none"),
    ],
)
def test_a_forced_tool_call_forces_decode_only(choice, expected):
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = body(image_part(RED), tools=tools, tool_choice=choice)

    assert sent(legs.prefill_leg(request, qwen(), encoded(RED)))["tool_choice"] == expected
    assert sent(legs.decode_leg(request, qwen(), encoded(RED), KV))["tool_choice"] == choice


@pytest.mark.case("t03")
def test_prefill_gets_metadata_identity_and_where_the_embedding_lies():
    prefill = legs.prefill_leg(body("before", image_part(RED), "after"), qwen(), encoded(RED))

    assert parts(prefill) == [
        {"type": "text", "text": "before"},
        {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 4]}, "uuid": identity_of(RED)},
        {"type": "text", "text": "after"},
    ]
    entry = {"item_indices": [0], "metadata": {"image_grid_thw": [1, 4, 4]}}
    assert sent(prefill)["ec_transfer_params"] == {identity_of(RED): entry}
    assert sent(prefill)["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}


def test_prefill_of_text_carries_no_embedding_parameters():
    prefill = sent(legs.prefill_leg(body("hello"), qwen(), EncodedMedia()))

    assert "ec_transfer_params" not in prefill
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True


@pytest.mark.case("t06")
def test_llava_prefill_gets_as_many_zero_rows_as_encode_counted():
    part = parts(legs.prefill_leg(body(image_part(RED)), llava(), encoded_llava(RED)))[0]

    assert decode_descriptor(part["image_embeds"]).shape == (LLAVA_TOKENS, WIDTH)
    assert part["uuid"] == identity_of(RED)


# -- decode ----------------------------------------------------------------------------------------


@pytest.mark.case("c04")
def test_decode_gets_the_clients_fields_as_sent():
    fields = {
        "max_completion_tokens": 800,
        "min_tokens": 100,
        "temperature": 0.25,
        "seed": 7,
        "stop": ["x", "y"],
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"5": 1.5},
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_object"},
        "top_k": 4,
        "ignore_eos": True,
        "user": None,
    }

    decode = sent(legs.decode_leg(body(image_part(RED), **fields), qwen(), encoded(RED), KV))

    assert {name: decode[name] for name in fields} == fields
    assert decode.keys() == fields.keys() | {"model", "messages", "kv_transfer_params", "return_token_ids"}


@pytest.mark.case("c04")
def test_absent_fields_stay_absent_on_decode():
    decode = sent(legs.decode_leg(body(image_part(RED)), qwen(), encoded(RED), KV))

    assert decode.keys() == {"model", "messages", "kv_transfer_params", "return_token_ids"}
    assert decode["kv_transfer_params"] == KV


@pytest.mark.case("t03")
@pytest.mark.parametrize("form", [DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY])
def test_decode_gets_the_contracts_form_with_identity_and_grid(form):
    part = parts(legs.decode_leg(body(image_part(RED)), qwen(form), encoded(RED), KV))[0]

    assert part["uuid"] == identity_of(RED)
    facts = part["image_embeds"]
    if form is DecodeForm.METADATA_ONLY:
        assert facts == {"image_grid_thw": [1, 4, 4]}
    else:
        assert decode_descriptor(facts["image_embeds"]).shape == (4, WIDTH)
        assert decode_descriptor(facts["image_grid_thw"]).values == (1, 4, 4)


@pytest.mark.case("t02")
@pytest.mark.parametrize("form", [DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY])
def test_decode_of_a_family_with_grids_never_goes_by_token_ids(form):
    assert not legs.uses_expanded_prompt(body(image_part(RED)), qwen(form), encoded(RED))


@pytest.mark.case("c06")
def test_three_pictures_keep_their_order_and_positions_in_every_leg():
    content = ["a", image_part(BLUE), "b", image_part(RED), image_part(GREEN), "c"]
    request = body(*content)
    media = encoded(BLUE, RED, GREEN)
    expected = ["a", identity_of(BLUE), "b", identity_of(RED), identity_of(GREEN), "c"]

    for leg in (legs.prefill_leg(request, qwen(), media), legs.decode_leg(request, qwen(), media, KV)):
        assert [part.get("uuid") or part["text"] for part in parts(leg)] == expected
    raw = parts(legs.prefill_raw_leg(request, chat_media(request)))
    assert [part.get("text") or part["image_url"]["url"] for part in raw] == ["a", BLUE, "b", RED, GREEN, "c"]


def test_a_picture_that_occurs_twice_is_named_once_with_both_places():
    transfer = encoded(RED, BLUE, RED).transfer

    assert {identity: entry["item_indices"] for identity, entry in transfer.items()} == {
        identity_of(RED): [0, 2],
        identity_of(BLUE): [1],
    }


@pytest.mark.case("t10")
def test_a_videos_timing_travels_to_prefill_and_decode():
    medium = Medium("video", identity_of("v"), 8, (2, 4, 4), (2.0,))
    media = EncodedMedia.gathered([EncodedMedium(medium, {"item_indices": [0], "metadata": {}})])
    request = body(video_part(video("v")))

    for form in (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY):
        for leg in (
            legs.prefill_leg(request, qwen(form), media),
            legs.decode_leg(request, qwen(form), media, KV),
        ):
            facts = parts(leg)[0]["video_embeds"]
            assert decode_descriptor(facts["second_per_grid_ts"]).values == (2.0,)


# -- decode by expanded prompt ---------------------------------------------------------------------


def expanded(request, prompt=(1, 2, 3)):
    return sent(legs.decode_expanded_leg(request, llava(), encoded_llava(RED, BLUE), KV, list(prompt)))


@pytest.mark.case("t04")
def test_an_expanded_prompt_always_has_a_salt_of_its_pictures_in_order():
    decode = expanded(body(image_part(RED), image_part(BLUE)))

    assert decode["prompt"] == [1, 2, 3]
    assert decode["cache_salt"] == cache_salt([identity_of(RED), identity_of(BLUE)])
    assert decode["cache_salt"] != cache_salt([identity_of(BLUE), identity_of(RED)])
    assert decode["kv_transfer_params"] == KV
    assert "messages" not in decode


def test_an_expanded_prompt_keeps_the_clients_sampling_fields():
    fields = {"temperature": 0.0, "stop": "x", "seed": 3, "ignore_eos": True, "stream": True}

    decode = expanded(body(image_part(RED), **fields))

    assert {name: decode[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"max_tokens": None}, 4096 - 3),
        ({}, 4096 - 3),
    ],
)
@pytest.mark.case("c04")
def test_an_expanded_prompt_without_a_maximum_fills_the_context_as_a_chat_does(fields, expected):
    assert expanded(body(image_part(RED), **fields))["max_tokens"] == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"logprobs": True},
        {"return_tokens_as_token_ids": True},
    ],
)
def test_a_llava_chat_that_needs_chat_features_uses_zeros(fields):
    request = body(image_part(RED), **fields)

    assert not legs.uses_expanded_prompt(request, llava(), encoded_llava(RED))
    part = parts(legs.decode_leg(request, llava(), encoded_llava(RED), KV))[0]
    assert decode_descriptor(part["image_embeds"]).shape == (LLAVA_TOKENS, WIDTH)
    assert part["uuid"] == identity_of(RED)


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"tools": []}, {"tool_choice": "none"}])
def test_a_plain_llava_chat_uses_the_expanded_prompt(fields):
    assert legs.uses_expanded_prompt(body(image_part(RED), **fields), llava(), encoded_llava(RED))


def test_text_without_media_is_decoded_as_a_chat():
    assert not legs.uses_expanded_prompt(body("hello"), llava(), EncodedMedia())


# -- salts, messages, completions -------------------------------------------------------------------


@pytest.mark.case("c25")
def test_a_clients_salt_is_namespaced_in_every_leg():
    request = body(image_part(RED), cache_salt="mine")
    salted = cache_salt((), "mine")

    for leg in (
        legs.prefill_leg(request, qwen(), encoded(RED)),
        legs.prefill_raw_leg(request, chat_media(request)),
        legs.decode_leg(request, qwen(), encoded(RED), KV),
        legs.generate_leg(request, qwen(), encoded(RED)),
        legs.generate_raw_leg(request, chat_media(request)),
    ):
        assert sent(leg)["cache_salt"] == salted
    assert expanded(request)["cache_salt"] == cache_salt([identity_of(RED), identity_of(BLUE)], "mine")


@pytest.mark.case("c07")
@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": "hello"}]])
def test_text_content_travels_as_it_came(content):
    request = parse_chat(
        json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}).encode()
    )

    for leg in (
        legs.prefill_leg(request, llava(), EncodedMedia()),
        legs.decode_leg(request, llava(), EncodedMedia(), KV),
    ):
        assert sent(leg)["messages"] == [{"role": "user", "content": content}]


def test_a_tool_conversation_travels_whole_and_null_answer_fields_are_dropped():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "name": "ann", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "audio": None,
            "function_call": None,
            "annotations": None,
            "refusal": None,
            "reasoning": None,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    request = parse_chat(json.dumps({"model": MODEL, "messages": messages}).encode())

    decode = sent(legs.decode_leg(request, qwen(), EncodedMedia(), KV))

    for dropped in ("audio", "function_call", "annotations", "refusal", "reasoning"):
        del messages[2][dropped]
    assert decode["messages"] == messages


def test_the_legs_of_a_text_completion():
    fields = {"max_tokens": 5, "temperature": 0, "logprobs": 2, "stream": True, "cache_salt": "mine"}
    request = parse_completion(json.dumps({"model": MODEL, "prompt": "hello", **fields}).encode())

    prefill = sent(legs.completion_prefill_leg(request))
    decode = sent(legs.completion_leg(request, KV))

    assert prefill == {
        "model": MODEL,
        "prompt": "hello",
        "max_tokens": 1,
        "stream": False,
        "cache_salt": cache_salt((), "mine"),
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        "return_token_ids": True,
    }
    assert decode["kv_transfer_params"] == KV
    assert decode["cache_salt"] == prefill["cache_salt"]
    assert {n: decode[n] for n in ("max_tokens", "temperature", "logprobs", "stream")} == {
        n: fields[n] for n in ("max_tokens", "temperature", "logprobs", "stream")
    }
    assert "kv_transfer_params" not in sent(legs.completion_leg(request))


def test_decode_never_carries_the_picture():
    big = picture("x" * 50_000, (1, 4, 4))
    GRIDS[big] = (1, 4, 4)
    request = body(image_part(big), "what is it?")

    for form in (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY):
        assert len(legs.decode_leg(request, qwen(form), encoded(big), KV).body) < 1000
