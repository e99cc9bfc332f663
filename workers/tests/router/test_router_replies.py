"""What engines report is checked before anything is built on it."""

from __future__ import annotations

import json

import pytest
from scripted_engines import LLAVA_TOKENS, PAD, identity_of, model_info, picture, video

from mmdisagg_workers.contract import DecodeForm, Medium, family
from mmdisagg_workers.router.errors import EngineFailedError, EngineRefusedError, PromptMismatchError
from mmdisagg_workers.router.legs import EncodedMedia, Model
from mmdisagg_workers.router.replies import (
    EngineReply,
    check_placeholders,
    check_same_prompt,
    encoded_medium,
    engine_error,
    prefilled_media,
    read_reply,
    stream_error,
)
from mmdisagg_workers.router.validation import ClientMedium

QWEN = Model(family("Qwen2.5-VL"), model_info("encode", "E/P/D"), DecodeForm.ZERO_EMBEDDING)
LLAVA = Model(family("LLaVA"), model_info("encode", "E/P/D", "LLaVA"), DecodeForm.EXPANDED_PROMPT)
RED = ClientMedium("image", picture("red"))
BLUE = ClientMedium("image", picture("blue"))
CLIP = ClientMedium("video", video("clip"))
A, B = identity_of("a"), identity_of("b")


def report(identity=A, metadata=None, indices=(0,)):
    made = {"image_grid_thw": [1, 4, 4]} if metadata is None else metadata
    return {identity: {"item_indices": list(indices), "metadata": made}}


def reply(ec=None, prompt=(4, *[PAD["image"]] * 4, 5)):
    return EngineReply(ec_transfer_params=ec, prompt_token_ids=list(prompt))


def test_an_encoded_picture():
    encoded = encoded_medium(QWEN, RED, reply(report()))

    assert encoded.medium == Medium("image", A, 4, (1, 4, 4))


@pytest.mark.case("t06")
def test_a_family_without_a_grid_takes_the_row_count_from_the_expanded_prompt():
    prompt = [4, *[PAD["image"]] * LLAVA_TOKENS, 5]

    assert encoded_medium(LLAVA, RED, reply(report(metadata={}), prompt)).medium.tokens == LLAVA_TOKENS


@pytest.mark.parametrize(
    ("medium", "ec", "named"),
    [
        (RED, None, "0 media"),
        (RED, {**report(A), **report(B)}, "2 media"),
        (RED, report(metadata={}), "image_grid_thw"),
        (RED, report(metadata={"image_grid_thw": [0, 0, 0]}), "image_grid_thw"),
        (RED, report(metadata={"image_grid_thw": [[1, 4, 4], [1, 4, 4]]}), "image_grid_thw"),
        (RED, report(metadata={"image_grid_thw": [1, 8, 8]}), "placeholder"),
        (RED, report(identity="../../x"), "16 to 128"),
        (RED, {A: "nonsense"}, "ec_transfer_params"),
        (CLIP, report(metadata={"video_grid_thw": [1, 4, 4]}), "placeholder"),
    ],
)
def test_a_report_that_lacks_a_fact_fails_the_stage(medium, ec, named):
    with pytest.raises(EngineFailedError, match=named):
        encoded_medium(QWEN, medium, reply(ec))


@pytest.mark.case("t10")
def test_a_video_without_timing_fails_the_stage():
    prompt = [*[PAD["video"]] * 8]

    with pytest.raises(EngineFailedError, match="second_per_grid_ts"):
        encoded_medium(QWEN, CLIP, reply(report(metadata={"video_grid_thw": [2, 4, 4]}), prompt))


@pytest.mark.case("t06")
def test_a_picture_without_rows_fails_the_stage():
    with pytest.raises(EngineFailedError, match="prompt_token_ids"):
        encoded_medium(LLAVA, RED, EngineReply(ec_transfer_params=report(metadata={})))


def test_a_prefill_that_encoded_names_its_media_by_index():
    ec = {**report(B, indices=(0,)), **report(A, indices=(1,))}

    assert prefilled_media(QWEN, [RED, BLUE], reply(ec)).identities == [B, A]


def test_a_picture_that_occurs_twice_in_a_prefill():
    assert prefilled_media(QWEN, [RED, RED], reply(report(A, indices=(0, 1)))).identities == [A, A]


@pytest.mark.parametrize("ec", [None, report(A, indices=(0,)), report(A, indices=(0, 1, 2))])
def test_a_prefill_that_reports_other_media_fails(ec):
    with pytest.raises(EngineFailedError, match="the request has 2"):
        prefilled_media(QWEN, [RED, BLUE], reply(ec))


def test_two_identities_of_one_picture_fail():
    ec = {**report(A, indices=(0,)), **report(B, indices=(0, 1))}
    with pytest.raises(EngineFailedError, match="two identities"):
        prefilled_media(QWEN, [RED, BLUE], reply(ec))


@pytest.mark.parametrize(
    ("runs", "expected"), [((16, 16), [16, 16]), ((16, 9), [16, 9]), ((32,), [16, 16]), ((33,), None)]
)
def test_rows_of_several_pictures_come_from_the_runs_of_the_prompt(runs, expected):
    ec = {**report(A, {}, (0,)), **report(B, {}, (1,))}
    prompt = [token for run in runs for token in (*[PAD["image"]] * run, 5)]

    if expected is None:
        with pytest.raises(EngineFailedError):
            prefilled_media(LLAVA, [RED, BLUE], reply(ec, prompt))
    else:
        media = prefilled_media(LLAVA, [RED, BLUE], reply(ec, prompt)).media
        assert [medium.tokens for medium in media] == expected


@pytest.mark.case("t05")
@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_prompt_with_other_placeholders_than_its_media_is_refused(count):
    encoded = EncodedMedia((Medium("image", A, 4, (1, 4, 4)),))

    with pytest.raises(PromptMismatchError, match="placeholder"):
        check_placeholders("prefill", QWEN, encoded, [PAD["image"]] * count)
    check_placeholders("prefill", QWEN, encoded, [PAD["image"]] * 4)


@pytest.mark.case("t12")
def test_a_placeholder_that_belongs_to_no_medium_is_refused():
    with pytest.raises(PromptMismatchError):
        check_placeholders("prefill", QWEN, EncodedMedia(), [1, PAD["video"], 2])


@pytest.mark.case("t05")
@pytest.mark.parametrize("other", [None, [], [1, 2], [1, 2, 4], [1, 2, 3, 4]])
def test_another_prompt_on_decode_is_refused(other):
    with pytest.raises(PromptMismatchError):
        check_same_prompt([1, 2, 3], other)
    check_same_prompt([1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize("data", [b"", b"[]", b"<html>", b'{"choices": 5}', b'{"prompt_token_ids": ["a"]}'])
def test_an_unreadable_answer_fails_the_stage(data):
    with pytest.raises(EngineFailedError):
        read_reply("encode", data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            json.dumps({"error": {"message": "no picture", "type": "BadRequestError", "code": 400}}),
            "no picture",
        ),
        (json.dumps({"error": "plain"}), "plain"),
        (json.dumps({"message": "flat"}), "flat"),
        (json.dumps({"detail": "Not Found"}), "Not Found"),
        ("<html>oops", "<html>oops"),
        ("", "HTTP status 422"),
    ],
)
def test_a_refusal_keeps_status_and_message(data, message):
    error = engine_error("encode", 422, data.encode())

    assert isinstance(error, EngineRefusedError)
    assert (error.status, error.message) == (422, message)


@pytest.mark.parametrize("status", [401, 403, 500, 502, 503, 302])
def test_everything_else_is_the_engines_failure(status):
    error = engine_error("prefill", status, b"{}")

    assert isinstance(error, EngineFailedError)
    assert error.status == 502


def test_a_streams_error_tells_its_status_in_the_event():
    refused = stream_error("decode", b'{"error": {"message": "too long", "code": 400}}')
    failed = stream_error("decode", b'{"error": {"message": "Internal server error", "code": 500}}')

    assert (refused.status, refused.message) == (400, "too long")
    assert isinstance(failed, EngineFailedError)
