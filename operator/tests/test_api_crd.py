"""The generated CRD is structural, carries defaults and rules, and is the one that is committed."""

import pytest
import yaml
from documents import REPOSITORY, document

from mmdisagg_operator.api import Family, Role, Topology, load_deployment
from mmdisagg_operator.api.crd import crd_yaml, custom_resource_definition, main
from mmdisagg_operator.api.reserved import RESERVED_FLAGS

CRD = custom_resource_definition()
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def nodes(node, path=""):
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[{key}]")


def rules(node):
    return [rule["rule"] for rule in node.get("x-kubernetes-validations", ())]


def test_every_node_is_structural():
    for path, node in nodes(SCHEMA):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "$defs", "title", "allOf", "oneOf", "const", "nullable"} & set(node), path
        assert node.get("type") in (None, "object", "array", "string", "integer", "boolean"), path


def test_every_field_is_described():
    for path, node in nodes(SCHEMA):
        if not path.endswith("]") and path not in (".apiVersion", ".kind", ".metadata"):
            assert node["description"].endswith("."), path


def test_a_list_and_a_text_that_cel_walks_are_bounded():
    for path, node in nodes(SPEC):
        if rules(node.get("items", {})):
            assert node["maxItems"] <= 64, path
        if rules(node) and node.get("type") != "object":
            assert node["maxLength"] <= 4096, path


def test_rules_stand_where_their_fields_are():
    assert len(rules(SPEC)) == 8
    assert len(rules(SPEC["properties"]["model"])) == 6
    assert len(rules(SPEC["properties"]["handoff"])) == 2
    assert len(rules(SPEC["properties"]["handoff"]["properties"]["sharedVolume"])) == 2
    assert "has(self.prefill)" in rules(SPEC)[0]


def test_the_path_that_a_rule_reports_exists():
    for path, node in nodes(SPEC):
        for rule in node.get("x-kubernetes-validations", ()):
            found = node
            for part in rule.get("fieldPath", "").split(".")[1:]:
                assert part in found["properties"], (path, rule)
                found = found["properties"][part]


@pytest.mark.parametrize("holder", ["engine", "encode", "prefill", "decode"])
def test_reserved_flags_are_refused_by_the_api_server_too(holder):
    (rule,) = rules(SPEC["properties"][holder]["properties"]["extraArgs"]["items"])
    assert all(f"'{flag}'" in rule for flag in RESERVED_FLAGS)


def test_families_are_a_closed_set():
    assert SPEC["properties"]["model"]["properties"]["family"]["enum"] == [str(family) for family in Family]


@pytest.mark.case("c15")
@pytest.mark.parametrize("role", ["encode", "prefill", "decode"])
def test_shared_memory_defaults_to_eight_gibibytes(role):
    assert SPEC["properties"][role]["properties"]["shmSize"]["default"] == "8Gi"


def test_defaults_reach_rules_and_limits():
    assert SPEC["properties"]["media"]["default"] == {}
    limits = SPEC["properties"]["media"]["properties"]["limits"]
    assert limits["default"] == {}
    assert {name: field["default"] for name, field in limits["properties"].items()} == {
        "images": 8,
        "videos": 1,
        "bytes": "20Mi",
        "pixels": "40M",
    }
    assert SPEC["properties"]["handoff"]["default"] == {}
    assert SPEC["properties"]["decode"]["properties"]["contract"]["default"] == "Auto"


def filled(node, value):
    """What the API server makes of a value: absent properties take their defaults, at every depth."""
    if not isinstance(value, dict) or "properties" not in node:
        return value
    defaults = {name: child["default"] for name, child in node["properties"].items() if "default" in child}
    return {
        name: filled(node["properties"].get(name, {}), child) for name, child in (defaults | value).items()
    }


@pytest.mark.parametrize("topology", Topology)
def test_the_api_server_fills_in_what_the_types_fill_in(topology):
    written = document(topology)
    stored = filled(SCHEMA, written)
    assert stored["spec"]["media"]["limits"]["bytes"] == "20Mi"
    assert load_deployment(stored) == load_deployment(written)


def test_roles_that_make_the_topology_are_never_defaulted():
    for role in ("encode", "prefill", "decode"):
        assert "default" not in SPEC["properties"][role]
    assert SPEC["required"] == ["model", "engine", "decode"]


def test_replicas_are_never_defaulted():
    for role in Role:
        assert "default" not in SPEC["properties"][role]["properties"]["replicas"], role


def test_the_status_is_the_operators_alone():
    assert VERSION["subresources"] == {"status": {}}
    assert not [path for path, node in nodes(SCHEMA["properties"]["status"]) if "default" in node]
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_kubectl_get_shows_what_an_operator_asks_first():
    columns = VERSION["additionalPrinterColumns"]
    assert [column["name"] for column in columns if not column.get("priority")] == [
        *("Model", "Encode", "Prefill", "Decode", "Ready", "Reason")
    ]
    assert [column["name"] for column in columns if column.get("priority")] == ["URL", "Age"]


def test_names_and_short_name():
    assert CRD["metadata"]["name"] == "multimodaldisaggdeployments.mmdisagg.io"
    assert CRD["spec"]["names"]["shortNames"] == ["mmdd"]
    assert CRD["spec"]["scope"] == "Namespaced"


def test_the_committed_file_is_the_generated_one():
    assert main(["--check", str(REPOSITORY / "crds")]) == 0


def test_the_file_is_plain_yaml():
    assert yaml.safe_load(crd_yaml()) == CRD
    assert "&id" not in crd_yaml()


def test_check_tells_the_difference(tmp_path, capsys):
    assert main(["--check", str(tmp_path)]) == 1
    assert main(["--write", str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (written,) = tmp_path.iterdir()
    written.write_text(written.read_text().replace("default: 8Gi", "default: 64Mi"))
    capsys.readouterr()
    assert main(["--check", str(tmp_path)]) == 1
    assert "+                    default: 8Gi" in capsys.readouterr().err
