"""A deployment in pods, prefill on another node than encode and decode, answers like one engine, token for token."""

import json
import random

from chat import Server
from deployed import finalizers
from kubectl import Outside, until

from mmdisagg_cli import scenes
from mmdisagg_cli.chat import ChatClient
from mmdisagg_cli.comparison import compare, summarise, tells_pictures_apart
from mmdisagg_cli.workload import picture_requests

REQUESTS, MAX_TOKENS = 12, 24
SECONDS_PER_ANSWER = 60
ASK = (
    "import json, sys, urllib.request as r; "
    "asked = r.Request(sys.argv[1], sys.argv[2].encode(), {'Content-Type': 'application/json'}); "
    "answer = json.load(r.build_opener(r.ProxyHandler({})).open(asked, timeout=60)); "
    "print(answer['choices'][0]['message']['content'])"
)


def question(seed):
    return scenes.question(random.Random(seed))


def test_every_condition_is_true(demo):
    conditions = demo.status()["conditions"]
    assert {c["type"] for c in conditions} == {
        *("Available", "Progressing", "EncodeReady", "PrefillReady", "DecodeReady", "RouterReady")
    }
    assert {c["status"] for c in conditions} == {"True"}
    assert demo.status()["roles"]["decode"] == {"desired": 1, "ready": 1, "updated": 1, "summary": "1/1"}
    described = demo.describe()
    assert f"at http://shapes-router.{demo.kubectl.command[-1].partition('=')[2]}.svc:8000" in described


def test_the_engines_are_on_two_nodes(demo, places):
    where = {role: demo.pods(role)[0]["spec"]["nodeName"] for role in ("encode", "prefill", "decode")}
    assert where == {"encode": places.first, "prefill": places.second, "decode": places.first}


def test_no_object_has_a_finalizer_and_no_pod_was_restarted(demo):
    made = demo.kubectl.items("mmdd,deployments,services,configmaps,secrets,networkpolicies")
    assert finalizers(made) == set()
    for role in ("encode", "prefill", "decode", "router"):
        (pod,) = demo.pods(role)
        assert [s["restartCount"] for s in pod["status"]["containerStatuses"]] == [0]


def test_kubectl_get_tells_what_people_look_for(demo, yardstick):
    table = demo.kubectl("get", "mmdd").splitlines()
    assert table[0].split() == ["NAME", "MODEL", "ENCODE", "PREFILL", "DECODE", "READY", "REASON"]
    rows = {row.split()[0]: row.split()[1:] for row in table[1:]}
    assert rows["shapes"] == ["shapes", "1/1", "1/1", "1/1", "True", "Available"]
    assert rows["alone"] == ["shapes", "1/1", "True", "Available"]
    wide = demo.kubectl("get", "mmdd", "shapes", "--output=wide").splitlines()
    columns = dict(zip(wide[0].split(), wide[1].split(), strict=True))
    assert columns["URL"] == demo.status()["url"]
    assert "AGE" in columns


def test_a_picture_is_answered_from_outside_of_the_cluster(outside):
    asked = question(1)
    assert Server(outside.url, "shapes").ask(asked.content()).text == asked.answer


def test_a_picture_is_answered_from_inside_of_the_cluster(demo, pods, image):
    asked = question(2)
    body = {"model": "shapes", "messages": [{"role": "user", "content": asked.content()}], "temperature": 0}
    url = demo.status()["url"] + "/v1/chat/completions"
    ended = pods.run(image("router"), "-c", ASK, url, json.dumps(body), command=["python3"])
    assert ended.log.strip() == asked.answer


def test_every_answer_is_token_identical_to_the_aggregated_engines(demo, yardstick, outside):
    requests = list(picture_requests(23, REQUESTS, 2, 1024))
    pictures = sum(item["type"] == "image_url" for request in requests for item in request.content)
    before = transfers(demo)
    with Outside(yardstick.kubectl, "alone-router") as way:
        servers = (ChatClient(url, "shapes", SECONDS_PER_ANSWER) for url in (outside.url, way.url))
        outcomes = list(compare(*servers, requests, MAX_TOKENS, parallel=4))
    assert summarise(outcomes).passed, [o for o in outcomes if not o.identical]
    # In a long prompt the tiny model sees worse, aggregated or not.
    short = [o for o in outcomes if o.request.kind in ("one picture", "two pictures")]
    assert [o.routed.text for o in short] == [o.request.truth for o in short]
    # Negative control: answers of other pictures would be noticed.
    assert tells_pictures_apart(outcomes)
    assert outcomes[1].reference.token_ids != outcomes[2].reference.token_ids
    # Engines count a little later; what a cache still has is not moved again.
    moved = until("transfers", lambda: both(before, transfers(demo)), seconds=30)
    assert moved["embeddings"] <= pictures
    assert moved["KV"] <= REQUESTS


def both(before, after):
    """How much more was transferred, once there is some of each."""
    more = {name: after[name] - before[name] for name in after}
    return more if all(more.values()) else None


def transfers(demo):
    return {
        "embeddings": demo.role_metric("prefill", "mmdisagg_embedding_loads_total"),
        "KV": demo.role_metric("decode", "vllm:nixl_xfer_time_seconds_count"),
    }
