"""The guard's table, row by row, and the traps by which vLLM would read a request as something else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine_embeds_payload import bare_zeros, values, zeros

from mmdisagg_workers.contract import Geometry, Placeholder, Role, Topology, family
from mmdisagg_workers.engine.guard_rules import CHAT, COMPLETION, ROWS, StageRules
from mmdisagg_workers.engine.settings import MediaPolicy

PLACEHOLDERS = {"image": Placeholder(12, "<|image_pad|>"), "video": Placeholder(13, "<|video_pad|>")}
RULES = StageRules(
    ROWS[Topology.E_P_D, Role.DECODE],
    family("Qwen2.5-VL"),
    Geometry(128, 2, PLACEHOLDERS),
    MediaPolicy(images=3),
    1024,
)
LLAVA = replace(
    RULES, family=family("LLaVA"), geometry=Geometry(128, None, {"image": Placeholder(4, "<image>")})
)

ID = "ab" * 16
RAW = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
EMBEDS = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 16, 16]}, "uuid": ID}
TEXT = {"type": "text", "text": "what is this?"}
FROM_PREFILL = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
EC = {"ec_transfer_params": {ID: {"item_indices": [0]}}}
KV = {"kv_transfer_params": FROM_PREFILL}
SEND = {"kv_transfer_params": TO_PREFILL}


def of(topology, role, rules=RULES):
    return replace(rules, row=ROWS[Topology(topology), Role(role)])


def chat(*parts, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": [*parts, TEXT]}], **fields}


def refused(rules, body, path=CHAT):
    violation = rules.violation(path, body)
    return violation and (violation.status, violation.param)


ACCEPTED = [
    ("E/P/D", "encode", chat(RAW)),
    ("E/P/D", "prefill", chat(EMBEDS, **EC, **SEND)),
    ("E/P/D", "prefill", chat(**SEND)),
    ("E/P/D", "decode", chat(EMBEDS, **KV)),
    ("E/P/D", "decode", chat(**KV)),
    ("E/P/D", "decode", chat()),
    ("E/PD", "encode", chat(RAW)),
    ("E/PD", "decode", chat(EMBEDS, **EC)),
    ("E/PD", "decode", chat()),
    ("EP/D", "prefill", chat(RAW, **SEND)),
    ("EP/D", "decode", chat(EMBEDS, **KV)),
    ("PD", "decode", chat(RAW)),
    ("PD", "decode", chat()),
    ("PD", "aggregated", chat(RAW)),
    ("E/P/D", "aggregated", chat(RAW, RAW)),
]


@pytest.mark.parametrize(("topology", "role", "body"), ACCEPTED)
def test_what_the_router_sends_is_taken(topology, role, body):
    assert of(topology, role).violation(CHAT, body) is None


BY_ROW = [
    ("E/P/D", "encode", chat(EMBEDS), "image_embeds"),
    ("E/P/D", "encode", chat(), "messages"),
    ("E/P/D", "encode", chat(RAW, **KV), "kv_transfer_params"),
    ("E/P/D", "encode", chat(RAW, **EC), "ec_transfer_params"),
    ("E/P/D", "prefill", chat(RAW, **SEND), "image_url"),
    ("E/P/D", "prefill", chat(EMBEDS, **SEND), "ec_transfer_params"),
    ("E/P/D", "prefill", chat(EMBEDS, ec_transfer_params={"cd" * 16: {}}, **SEND), "ec_transfer_params"),
    ("E/P/D", "prefill", chat(EMBEDS, **EC, **KV), "kv_transfer_params"),
    ("E/P/D", "decode", chat(RAW), "image_url"),
    ("E/P/D", "decode", chat(RAW, **KV), "image_url"),
    ("E/P/D", "decode", chat(EMBEDS), "kv_transfer_params"),
    ("E/P/D", "decode", chat(EMBEDS, **SEND), "kv_transfer_params"),
    ("E/P/D", "decode", chat(EMBEDS, **EC, **KV), "ec_transfer_params"),
    ("E/PD", "decode", chat(EMBEDS), "ec_transfer_params"),
    ("E/PD", "decode", chat(RAW), "image_url"),
    ("E/PD", "decode", chat(EMBEDS, **EC, **KV), "kv_transfer_params"),
    ("EP/D", "prefill", chat(EMBEDS, **SEND), "image_embeds"),
    ("EP/D", "decode", chat(EMBEDS), "kv_transfer_params"),
    ("PD", "decode", chat(EMBEDS), "image_embeds"),
    ("PD", "aggregated", chat(EMBEDS, **EC), "ec_transfer_params"),
]


@pytest.mark.case("x02")
@pytest.mark.parametrize(("topology", "role", "body", "param"), BY_ROW)
def test_what_a_row_does_not_take_is_refused(topology, role, body, param):
    assert refused(of(topology, role), body) == (400, param)


@pytest.mark.parametrize(
    "missing", [name for name in FROM_PREFILL if name not in ("do_remote_decode", "tp_size")]
)
def test_incomplete_kv_parameters_are_refused(missing):
    kv = {name: value for name, value in FROM_PREFILL.items() if name != missing}
    assert refused(RULES, chat(EMBEDS, kv_transfer_params=kv)) == (400, "kv_transfer_params")


@pytest.mark.parametrize(
    "kv",
    [
        [],
        "x",
        7,
        {},
        FROM_PREFILL | {"remote_port": "5600"},
        FROM_PREFILL | {"remote_port": 0},
        FROM_PREFILL | {"remote_block_ids": []},
        FROM_PREFILL | {"remote_block_ids": [1, 2]},
        FROM_PREFILL | {"remote_block_ids": [["1"]]},
        FROM_PREFILL | {"remote_block_ids": [[True]]},
        FROM_PREFILL | {"remote_host": 7},
        FROM_PREFILL | {"tp_size": "1"},
        FROM_PREFILL | {"pp_size": [1]},
        FROM_PREFILL | {"remote_blocks_expiry_time": "x"},
        FROM_PREFILL | {"do_remote_decode": True},
    ],
)
def test_malformed_kv_parameters_are_refused(kv):
    assert refused(RULES, chat(EMBEDS, kv_transfer_params=kv)) == (400, "kv_transfer_params")


def test_prefill_fetches_no_blocks_for_a_caller():
    kv = TO_PREFILL | {"remote_host": "10.0.0.1", "remote_block_ids": [1]}
    assert refused(of("E/P/D", "prefill"), chat(kv_transfer_params=kv)) == (400, "kv_transfer_params")


@pytest.mark.case("c25")
@pytest.mark.parametrize("uuid", [None, "", "../../x", "AB" * 16, "ab", 7, [ID]])
def test_every_embeds_part_needs_a_wellformed_identity(uuid):
    assert refused(RULES, chat(EMBEDS | {"uuid": uuid}, **KV)) == (400, "uuid")


@pytest.mark.parametrize("ec", [[], "x", 7, {"../../x": {}}, {ID: None}, {ID: [0]}])
def test_embeddings_are_named_by_identities_also_without_media(ec):
    assert refused(of("E/PD", "decode"), chat(ec_transfer_params=ec)) == (400, "ec_transfer_params")


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_extension_arguments_are_no_way_around_the_kv_rules(path):
    body = chat(vllm_xargs={"kv_transfer_params": FROM_PREFILL}) | {"prompt": "x"}
    assert refused(of("PD", "decode"), body, path) == (400, "vllm_xargs")


@pytest.mark.case("c25")
@pytest.mark.parametrize("uuid", [ID, "", 0, [], False])
def test_a_raw_part_must_not_name_an_identity(uuid):
    assert refused(of("PD", "decode"), chat(RAW | {"uuid": uuid})) == (400, "uuid")


@pytest.mark.parametrize("url", [None, "", {}, {"url": None}, {"url": ""}, 7])
@pytest.mark.case("c05")
def test_a_raw_part_without_url_is_never_silently_skipped(url):
    assert refused(of("PD", "decode"), chat({"type": "image_url", "image_url": url})) == (400, "image_url")


@pytest.mark.parametrize(
    "part",
    [
        EMBEDS | {"image_url": None},
        EMBEDS | {"image_url": "https://example.com"},
        EMBEDS | {"image_pil": None},
        EMBEDS | {"prompt_embeds": "x"},
        TEXT | {"uuid": ID, "image_url": "https://example.com"},
        TEXT | {"image_embeds": {}},
        {"image_url": "https://example.com"},
        {"type": None, "image_embeds": {}, "uuid": ID},
        {"type": "audio_url", "audio_url": {"url": "https://example.com"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "image_pil", "image_pil": None},
        {"type": "input_image", "image_url": "https://example.com"},
        {"type": "prompt_embeds", "data": "x"},
        {"type": ["text"]},
        7,
        None,
    ],
)
def test_a_part_is_what_its_type_says_or_refused(part):
    assert refused(RULES, chat(part, **KV))[0] == 400


@pytest.mark.case("x03")
def test_payloads_are_checked_too():
    wrong = EMBEDS | {"image_embeds": {"image_grid_thw": values(1, 16, 16), "image_embeds": zeros(width=64)}}
    assert refused(RULES, chat(wrong, **KV)) == (400, "image_embeds")


@pytest.mark.case("x04")
def test_a_grid_of_zeros_is_named():
    part = EMBEDS | {"image_embeds": {"image_grid_thw": [0, 0, 0]}}
    assert refused(RULES, chat(part, **KV)) == (400, "image_grid_thw")


@pytest.mark.case("c18")
def test_more_media_than_allowed_are_refused_with_the_limit():
    violation = of("PD", "decode").violation(CHAT, chat(*[RAW] * 4))
    assert (violation.status, violation.message) == (400, "4 images in one request; the limit is 3")


def test_a_family_without_videos_refuses_them():
    video = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
    assert refused(of("PD", "decode", LLAVA), chat(video)) == (400, "messages")


@pytest.mark.parametrize("name", ["mm_processor_kwargs", "media_io_kwargs"])
@pytest.mark.case("c25")
def test_processor_arguments_belong_to_whoever_sees_the_pixels(name):
    assert refused(RULES, chat(EMBEDS, **KV, **{name: {}})) == (400, name)
    assert of("E/P/D", "encode").violation(CHAT, chat(RAW, **{name: {}})) is None


LITERAL = "look: <|image_pad|>"


@pytest.mark.case("t12")
@pytest.mark.parametrize(
    "body",
    [
        chat({"type": "text", "text": LITERAL}),
        {"messages": [{"role": "user", "content": LITERAL}]},
        {"messages": [{"role": "user", "content": [LITERAL]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": LITERAL}}]}]},
        chat(tools=[{"function": {"parameters": {"properties": {"image_url": {"description": LITERAL}}}}}]),
        chat(tools=[{"function": {"parameters": {"properties": {LITERAL: {}}}}}]),
        chat(documents=[{"text": LITERAL}]),
        chat(chat_template_kwargs={"x": LITERAL}),
        chat(chat_template=LITERAL),
    ],
)
def test_the_placeholder_token_in_any_text_is_refused(body):
    assert refused(RULES, body) == (400, "messages")


ESCAPED = LITERAL.replace("<", "\\u003c")


@pytest.mark.case("t12")
@pytest.mark.parametrize(
    "arguments", [f'{{"x": ["{ESCAPED}"]}}', f'{{"{ESCAPED}": NaN}}', f'["\\ud800", -Infinity, "{ESCAPED}"]']
)
def test_arguments_of_tool_calls_are_read_as_vllm_reads_them(arguments):
    body = {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}]}
    assert refused(RULES, body) == (400, "messages")


@pytest.mark.parametrize("arguments", [ESCAPED, "[" * 100_000, "1" * 5000, None, {}])
def test_arguments_that_are_no_json_count_as_they_are_written(arguments):
    body = {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}]}
    assert RULES.violation(CHAT, body) is None


def complete(prompt, **fields):
    return {"model": "m", "prompt": prompt, **fields}


@pytest.mark.case("t08")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "kv_transfer_params"),
        ({"cache_salt": "s"}, "kv_transfer_params"),
        (KV, "cache_salt"),
        (KV | {"cache_salt": ""}, "cache_salt"),
        (KV | {"cache_salt": 7}, "cache_salt"),
    ],
)
def test_a_token_prompt_with_placeholders_needs_kv_and_salt(fields, param):
    assert refused(LLAVA, complete([1, 4, 4, 2], **fields), COMPLETION) == (400, param)


def test_a_complete_token_prompt_is_taken():
    assert LLAVA.violation(COMPLETION, complete([1, 4, 4, 2], **KV, cache_salt="s")) is None


@pytest.mark.parametrize("prompt", [[[1, 4]], [[1], [4]]])
def test_placeholders_come_in_one_prompt(prompt):
    assert refused(LLAVA, complete(prompt, **KV, cache_salt="s"), COMPLETION) == (400, "prompt")


@pytest.mark.case("t01")
def test_a_family_with_grids_takes_no_placeholders_as_tokens():
    assert refused(RULES, complete([1, 12, 2], **KV, cache_salt="s"), COMPLETION) == (400, "prompt")


@pytest.mark.parametrize(("topology", "role"), [("E/P/D", "prefill"), ("E/PD", "decode"), ("PD", "decode")])
def test_elsewhere_placeholders_as_tokens_are_refused(topology, role):
    assert refused(of(topology, role, LLAVA), complete([4]), COMPLETION) == (400, "kv_transfer_params")


@pytest.mark.parametrize(
    "prompt", [[1, 4.0], [[4.0]], [True], ["4", 1], [["4"]], [None], [{}], {}, 4, [[[4]]], ["a", [1]]]
)
def test_a_prompt_that_vllm_would_turn_into_tokens_is_refused(prompt):
    assert refused(LLAVA, complete(prompt, **KV, cache_salt="s"), COMPLETION) == (400, "prompt")


@pytest.mark.parametrize("prompt", ["hello", ["a", "b"], [1, 2, 3], [[1], [2]], None])
def test_text_completions_are_taken(prompt):
    assert RULES.violation(COMPLETION, complete(prompt)) is None


@pytest.mark.case("t12")
@pytest.mark.parametrize("prompt", [LITERAL, [LITERAL]])
def test_placeholder_text_in_a_completion_is_refused(prompt):
    assert refused(RULES, complete(prompt), COMPLETION) == (400, "messages")


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_prompt_embeds_are_refused(path):
    assert refused(RULES, chat() | {"prompt_embeds": "x"}, path) == (400, "prompt_embeds")


@pytest.mark.parametrize(
    "path",
    ["/v1/responses", "/v1/messages", "/inference/v1/generate", "/invocations", "/pooling", "/", "/v1/chat"],
)
def test_other_paths_are_not_served(path):
    assert refused(RULES, {}, path) == (404, None)


def test_encode_completes_nothing():
    assert refused(of("E/P/D", "encode"), complete("x"), COMPLETION) == (404, None)


def test_tokenizing_is_harmless():
    assert RULES.violation("/tokenize", {"prompt": LITERAL}) is None
    assert of("E/P/D", "encode").violation("/tokenize", chat()) is None


@pytest.mark.parametrize("part", [RAW, EMBEDS])
@pytest.mark.parametrize("role", ["encode", "prefill", "decode"])
def test_media_are_not_tokenized(role, part):
    assert refused(of("E/P/D", role), chat(part), "/tokenize") == (400, part["type"])


def test_llava_zeros_pass_through_the_chat():
    part = {"type": "image_embeds", "image_embeds": bare_zeros(), "uuid": ID}
    assert LLAVA.violation(CHAT, chat(part, **KV)) is None


def test_the_refusal_has_openai_shape():
    body = RULES.violation(CHAT, chat(EMBEDS)).body()
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "invalid_request_error"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known_names = st.sampled_from(
    [
        "messages",
        "content",
        "type",
        "text",
        "uuid",
        "image_embeds",
        "video_embeds",
        "image_url",
        "image_grid_thw",
        "prompt",
        "cache_salt",
        "kv_transfer_params",
        "ec_transfer_params",
        "do_remote_prefill",
        "remote_block_ids",
        "second_per_grid_ts",
        "tools",
    ]
)
known_values = st.sampled_from(
    ["text", "image_embeds", "image_url", "video_embeds", ID, zeros(), values(1, 2, 3)]
)
shaped = st.recursive(
    json_values | known_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known_names, inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(sorted(ROWS)), st.sampled_from([CHAT, COMPLETION, "/x"]), shaped)
def test_no_body_makes_the_rules_raise(row, path, body):
    violation = replace(RULES, row=ROWS[row]).violation(path, body)
    assert violation is None or violation.status in (400, 404)


@given(st.sampled_from(sorted(ROWS)), st.lists(shaped, max_size=3))
def test_no_parts_make_the_rules_raise(row, parts):
    body = {"messages": [{"role": "user", "content": parts}], **EC}
    violation = replace(RULES, row=ROWS[row]).violation(CHAT, body)
    assert violation is None or violation.status == 400


def test_deep_nesting_is_no_way_to_crash_it():
    deep = "x"
    for _ in range(900):
        deep = [deep]
    assert RULES.violation(CHAT, chat(tools=deep)) is None
