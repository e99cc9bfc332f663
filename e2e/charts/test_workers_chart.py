"""The workers' chart: values and presets make one resource, which the operator takes."""

import jsonschema
import pytest
import yaml
from chart import ROOT, contains, nested

from mmdisagg_operator.api import load_deployment
from mmdisagg_operator.plan import launches
from mmdisagg_operator.plan.site import ClusterSite

CRD = yaml.safe_load((ROOT / "crds/mmdisagg.io_multimodaldisaggdeployments.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
PRESETS = sorted(file.stem for file in (ROOT / "charts/mmdisagg/presets").glob("*.yaml"))
ROLES = {
    "E/P/D": {"encode", "prefill", "decode"},
    "E/PD": {"encode", "decode"},
    "EP/D": {"prefill", "decode"},
    "PD": {"decode"},
}
OWN = {"model": {"name": "org/model", "servedName": "model"}, "engine": {"maxModelLen": 4096}}
GPU = "nvidia.com/gpu"


def resource(chart, values, *words):
    """The only object that the chart renders, checked by the operator's types and by the CRD's schema."""
    (only,) = chart.render(values, *words)
    load_deployment(only)
    jsonschema.validate(only, SCHEMA)
    return only


def spec(chart, values, *words):
    return resource(chart, values, *words)["spec"]


def test_lint_passes_with_and_without_a_model(workers_chart):
    for values in ({}, {"preset": PRESETS[0]}):
        assert "0 chart(s) failed" in workers_chart.helm.must("lint", workers_chart.folder, values=values)


def test_without_a_model_it_says_what_to_do(workers_chart):
    assert "choose a preset" in workers_chart.refusal({})


class TestPresets:
    def test_there_is_one_for_each_kind_of_model(self):
        assert {"qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen2.5-vl-72b", "qwen3-vl-8b", "llava-1.5-7b"} <= set(
            PRESETS
        )

    @pytest.mark.parametrize("preset", PRESETS)
    def test_the_operator_takes_it(self, workers_chart, preset):
        wish = load_deployment(resource(workers_chart, {"preset": preset}))
        assert wish.spec.topology == "E/P/D"
        assert wish.spec.model.served_name == preset
        assert wish.spec.model.family != "Auto"

    @pytest.mark.parametrize("preset", PRESETS)
    def test_it_is_a_values_file_too(self, workers_chart, preset):
        file = workers_chart.folder / f"presets/{preset}.yaml"
        assert spec(workers_chart, {}, f"--values={file}") == spec(workers_chart, {"preset": preset})

    @pytest.mark.parametrize("preset", PRESETS)
    def test_engines_have_the_gpus_that_their_parallelism_needs(self, workers_chart, preset):
        wish = load_deployment(resource(workers_chart, {"preset": preset}))
        for role, (launch, *_) in launches(wish, ClusterSite.of(wish)).items():
            if role == "router":
                continue
            words = launch.args
            split = "--tensor-parallel-size" in words and words[words.index("--tensor-parallel-size") + 1]
            assert wish.spec.role(role).resources.limits[GPU] == (split or "1")

    @pytest.mark.parametrize("topology", ROLES)
    def test_every_topology_can_be_made_of_it(self, workers_chart, topology):
        made = spec(workers_chart, {"preset": "qwen2.5-vl-72b", "topology": topology})
        assert made.keys() & {"encode", "prefill", "decode"} == ROLES[topology]

    def test_own_values_go_over_it_even_zeros(self, workers_chart):
        own = {"media": {"limits": {"videos": 0}}, "decode": {"replicas": 0}, "model": {"family": "Auto"}}
        made = spec(workers_chart, {"preset": "qwen2.5-vl-7b", **own})
        assert contains(made, own)
        assert made["decode"]["resources"]["limits"] == {GPU: 1}
        assert made["media"]["limits"]["images"] == 8

    def test_its_weights_may_lie_on_a_volume(self, workers_chart):
        own = {
            "source": "Path",
            "path": "/model",
            "volume": {"persistentVolumeClaim": {"claimName": "weights"}},
        }
        made = spec(workers_chart, {"preset": "qwen2.5-vl-72b", "model": own})
        assert made["model"] == {**own, "servedName": "qwen2.5-vl-72b", "family": "Qwen2.5-VL"}

    def test_it_leaves_the_number_of_pods_to_autoscalers(self, workers_chart):
        for preset in PRESETS:
            made = spec(workers_chart, {"preset": preset})
            assert not [role for role in ("encode", "prefill", "decode") if "replicas" in made[role]]

    def test_an_unknown_one_is_refused_with_the_known_ones(self, workers_chart):
        assert "'llava-1.5-7b'" in workers_chart.refusal({"preset": "gpt"})


class TestValues:
    @pytest.mark.parametrize("topology", ROLES)
    def test_the_topology_decides_the_roles(self, workers_chart, topology):
        made = spec(workers_chart, {**OWN, "topology": topology})
        assert made.keys() == {"model", "engine", *ROLES[topology]}

    def test_the_default_topology_has_all_stages(self, workers_chart):
        assert spec(workers_chart, OWN).keys() == {"model", "engine", "encode", "prefill", "decode"}

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("image", "reg.test/worker:1"),
            ("model.tokenSecretRef", {"name": "hf", "key": "token"}),
            ("engine.extraArgs", ["--enforce-eager"]),
            ("engine.env", [{"name": "A", "value": "1"}]),
            ("media.allowedHosts", ["pictures.example.com"]),
            ("media.limits.bytes", 20971520),
            ("decode.contract", "MetadataOnly"),
            ("decode.scheduling.affinity", {"nodeAffinity": {"x": [1]}}),
            ("encode.volumes", [{"name": "a", "hostPath": {"path": "/a"}}]),
            ("encode.volumeMounts", [{"name": "a", "mountPath": "/a", "readOnly": True}]),
            ("prefill.podSecurityContext", {"runAsUser": 1234}),
            ("router.replicas", 3),
            ("handoff.sharedVolume.storageClassName", "shared"),
            ("rollout.strategy", "Recreate"),
        ],
    )
    def test_fields_of_the_spec_are_handed_on(self, workers_chart, path, value):
        assert contains(
            spec(workers_chart, {"preset": "qwen2.5-vl-3b", **nested(path, value)}), nested(path, value)
        )

    def test_a_local_model_needs_no_name(self, workers_chart):
        model = {
            "source": "Path",
            "path": "/model",
            "servedName": "m",
            "volume": {"hostPath": {"path": "/m"}},
        }
        assert spec(workers_chart, {**OWN, "model": model})["model"] == model

    def test_the_resource_has_the_releases_name_unless_told_otherwise(self, workers_chart):
        assert resource(workers_chart, OWN)["metadata"]["name"] == "demo"
        assert resource(workers_chart, {**OWN, "fullnameOverride": "qwen"})["metadata"]["name"] == "qwen"
        assert "longer than 40" in workers_chart.refusal(OWN, release="a" * 41)

    def test_labels_and_annotations(self, workers_chart):
        made = resource(workers_chart, {**OWN, "labels": {"team": "vision"}, "annotations": {"a": "b"}})
        assert made["metadata"]["labels"]["team"] == "vision"
        assert made["metadata"]["annotations"] == {"a": "b"}

    @pytest.mark.parametrize(
        "path",
        [
            "replicas",
            "model.nme",
            "engine.maxLen",
            "media.limits.audio",
            "encode.gpu",
            "decode.template",
            "handoff.sharedVolume.size",
            "router.port",
            "prefill.scheduling.nodes",
        ],
    )
    def test_unknown_values_are_refused_by_name(self, workers_chart, path):
        assert f"'{path.rpartition('.')[2]}' not allowed" in workers_chart.refusal(
            {**OWN, **nested(path, "x")}
        )

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("topology", "P/D"),
            ("engine.maxModelLen", "4096"),
            ("decode.contract", "Zero"),
            ("decode.replicas", -1),
            ("media.limits.bytes", "20 MB"),
            ("encode.env", [{"name": "A", "value": 1}]),
            ("encode.volumes", [{"hostPath": {}}]),
            ("rollout.strategy", "Blue"),
        ],
    )
    def test_wrong_values_are_refused_with_their_path(self, workers_chart, path, value):
        assert f"at '/{path.replace('.', '/')}" in workers_chart.refusal({**OWN, **nested(path, value)})


@pytest.mark.parametrize(
    ("values", "said", "unsaid"),
    [
        ({}, "as E/P/D", "ReadWriteMany"),
        ({"handoff": {"embedding": "SharedVolume"}}, "must offer ReadWriteMany", "Secret"),
        ({"topology": "PD"}, "as PD", "ReadWriteMany"),
        ({"handoff": {"sharedVolume": {"storageClassName": "nfs"}}}, "made with nfs", "default storage"),
        (
            {"model": {"tokenSecretRef": {"name": "hf", "key": "tok"}}},
            "hf --from-literal=tok",
            "ReadWriteOnce",
        ),
    ],
)
def test_notes_say_what_to_do_next(workers_chart, values, said, unsaid):
    notes = workers_chart.notes({"preset": "qwen2.5-vl-3b", **values})
    assert said in notes
    assert unsaid not in notes
    assert "service/demo-router" in notes
