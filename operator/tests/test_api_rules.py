"""Every rule lets its accepted example through, refuses the other, and names the field."""

import pytest
from documents import rule_examples

from mmdisagg_operator.api import ResourceError, load_deployment
from mmdisagg_operator.api.structure import Structure

EXAMPLES = list(rule_examples())


def structures(base=Structure):
    for structure in base.__subclasses__():
        yield structure
        yield from structures(structure)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_a_rule_lets_the_right_document_through(example):
    load_deployment(example.accepted)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_a_rule_refuses_the_wrong_document(example):
    with pytest.raises(ResourceError) as error:
        load_deployment(example.refused)
    assert example.path in [problem.path for problem in error.value.problems]


def test_every_rule_has_its_examples():
    written = {
        f"{structure.__name__}.{rule.holds.__name__.lstrip('_')}"
        for structure in structures()
        for rule in structure.rules()
    }
    assert len(written) >= 15
    assert written == {example.rule for example in EXAMPLES if "." in example.rule.partition(" ")[0]}
