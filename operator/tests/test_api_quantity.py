"""Quantities: whole numbers with Kubernetes' suffixes, nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.api.quantity import parse_quantity


@pytest.mark.parametrize(
    ("written", "number"),
    [(1, 1), ("1", 1), ("007", 7), ("40M", 40_000_000), ("20Mi", 20_971_520), ("8Gi", 2**33), ("3k", 3000)],
)
def test_a_quantity_is_the_number_it_stands_for(written, number):
    assert parse_quantity(written) == number


@pytest.mark.parametrize(
    "written",
    [0, -1, True, 1.0, None, "", "0", "0Mi", "-1", "1.5Mi", "20MB", "20 Mi", "Mi", "1\n", "٣"],
)
def test_anything_else_is_refused(written):
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(written)


@pytest.mark.parametrize("written", [2**50 + 1, "1025Ti", "99999999999T", "9" * 20])
def test_more_than_anybody_means_is_refused(written):
    assert parse_quantity("1024Ti") == 2**50
    with pytest.raises(ValueError, match="at most 1024Ti"):
        parse_quantity(written)


@given(st.integers(1, 10**6), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_suffixes_are_powers_of_a_thousand_or_of_1024(number, suffix):
    power = "kMG".find(suffix[:1].replace("K", "k")) + 1 if suffix else 0
    assert parse_quantity(f"{number}{suffix}") == number * (1024 if "i" in suffix else 1000) ** power
