"""What users do to a deployment that serves, and what happens to it, while clients go on asking."""

import random

import pytest
from chat import Server
from kubectl import Outside, until
from streams import DEADLINE_SECONDS, Streams

from mmdisagg_cli import scenes

LONG = {"max_tokens": 400, "ignore_eos": True}
"""A stream of some seconds."""
ON_A_VOLUME = {"sharedVolume": {"persistentVolumeClaim": {"claimName": "embeddings"}}}
GENERATED, RUNNING = "vllm:generation_tokens_total", "vllm:num_requests_running"


@pytest.fixture(scope="module")
def questions():
    rng = random.Random(5)
    return [scenes.question(rng) for _ in range(4)]


def asking(way, questions, clients, fields=LONG):
    return Streams(way, [question.content() for question in questions], clients, fields)


def answers(way, question):
    return Server(way.url, "shapes").ask(question.content()).text == question.answer


@pytest.mark.case("c08")
def test_without_a_free_gpu_the_status_says_so_and_recreate_is_the_way_out(
    yardstick, image, next_tag, questions
):
    old = yardstick.pod_names("decode")
    yardstick.apply(image=image("worker", next_tag))
    shortage = yardstick.says("Progressing", "False", "InsufficientGPU")
    assert "Insufficient nvidia.com/gpu" in shortage
    assert "set spec.rollout.strategy: Recreate" in yardstick.describe()
    yardstick.says("Available", "True", "Degraded")
    with Outside(yardstick.kubectl, "alone-router") as way:
        assert answers(way, questions[0])
    yardstick.apply(rollout={"strategy": "Recreate"})
    yardstick.serves()
    (pod,) = yardstick.pods("decode")
    assert pod["metadata"]["name"] not in old
    assert pod["spec"]["containers"][0]["image"] == image("worker", next_tag)
    with Outside(yardstick.kubectl, "alone-router") as way:
        assert answers(way, questions[0])


def test_a_resource_that_is_deleted_leaves_nothing(yardstick):
    assert len(yardstick.left()) > 10
    yardstick.delete()
    yardstick.is_gone()


def test_decode_is_scaled_up_and_down_and_no_stream_fails(demo, outside, questions):
    """Streams run on both pods when one is told to end: it leaves the router and finishes them."""
    (first,) = demo.pod_names("decode")
    with asking(outside, questions, clients=2) as before:
        demo.apply(decode={"replicas": 2})
        demo.serves()
        (second,) = demo.pod_names("decode") - {first}
        until("work for the second pod", lambda: demo.metric(second, GENERATED) > 0)
        with asking(outside, questions, clients=4) as during:
            until("work for both pods", lambda: all(demo.metric(pod, RUNNING) for pod in (first, second)))
            demo.apply(decode={"replicas": 1})
            until("the end of one", lambda: len(demo.all_pods("decode")) == 1)
            demo.serves()
    told = [*before.told, *during.told]
    assert [one.answer for one in told if not one.whole] == []
    assert {one.answer.usage["completion_tokens"] for one in told} == {LONG["max_tokens"]}
    assert all(one.answer.text.startswith(questions[one.question].answer) for one in told)


@pytest.mark.case("c16")
def test_a_deployment_that_is_deleted_is_made_again_and_answers_again(demo, outside, questions):
    old = demo.pod_names("encode")
    demo.kubectl("delete", "deployment", "shapes-encode", "--wait")
    until("another pod", lambda: demo.pod_names("encode") - old)
    demo.serves()
    fresh = scenes.question(random.Random(77))
    assert answers(outside, fresh)


@pytest.mark.case("c16")
def test_encode_is_removed_and_added_again_and_no_request_is_stuck(demo, outside, questions):
    """It comes back with another handoff, over a volume, so that both are seen across pods."""
    encode = demo.resource["spec"]["encode"]
    with asking(outside, questions, clients=2, fields={}) as streams:
        demo.apply(encode=None)
        until("the pruning", lambda: not demo.all_pods("encode"))
        demo.serves()
        assert set(demo.roles()) == {"prefill", "decode", "router"}
        assert answers(outside, scenes.question(random.Random(78)))
        demo.apply(encode=encode, handoff=ON_A_VOLUME)
        demo.serves()
        assert answers(outside, scenes.question(random.Random(79)))
    for one in streams.told:
        assert one.seconds < DEADLINE_SECONDS
        assert not one.whole or one.answer.text == questions[one.question].answer
        assert one.whole or one.answer.error or one.answer.status == 0, one
    assert any(one.whole for one in streams.told)
