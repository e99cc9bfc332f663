"""The operator imports no worker, so these tests hold its closed sets equal to the contract's registry."""

import pytest
from documents import deployment

from mmdisagg_operator.api import DecodeContract, Family, ResourceError
from mmdisagg_operator.plan.revision import CONTRACT_VERSION as PLANNED_VERSION
from mmdisagg_workers.contract import CONTRACT_VERSION, FAMILIES, DecodeForm


def test_families_are_those_with_a_contract():
    assert {str(family) for family in Family} == {"Auto", *FAMILIES}


def test_decode_contracts_are_the_contracts_forms():
    assert {str(contract) for contract in DecodeContract} == {"Auto", *map(str, DecodeForm)}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
@pytest.mark.parametrize("form", DecodeForm)
def test_a_family_takes_exactly_the_forms_that_are_right_for_it(family, form):
    change = {"model": {"family": family.name}, "decode": {"contract": str(form)}}
    if form in family.decode_forms:
        deployment(change=change)
    else:
        with pytest.raises(ResourceError, match=rf"spec\.decode\.contract: {form}"):
            deployment(change=change)


def test_the_revision_knows_the_wire_version():
    assert PLANNED_VERSION == CONTRACT_VERSION
