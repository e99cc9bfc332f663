"""What counts as the same answer; runs anywhere."""

import pytest
from closeness import ROUNDING, UNDECIDED, Step, difference, identical, steps


def answer(*tokens, logprob=-0.1, other=("?", -5.0)):
    return [Step(token, logprob, {token: logprob, other[0]: other[1]}) for token in tokens]


def test_equal_answers_are_identical():
    assert identical(answer("a", "b"), answer("a", "b"))
    assert difference(answer("a", "b"), answer("a", "b")) is None


@pytest.mark.parametrize(("margin", "fine"), [(UNDECIDED * 0.9, True), (UNDECIDED * 1.1, False)])
def test_answers_may_part_where_the_reference_was_undecided(margin, fine):
    reference = answer("a", "b", "c", other=("x", -0.1 - margin))
    assert (difference(answer("a", "x", "y"), reference) is None) == fine
    assert not identical(answer("a", "x", "y"), reference)


def test_a_token_that_the_reference_did_not_think_of_is_wrong():
    assert "token 2: 'z'" in difference(answer("a", "z"), answer("a", "b"))


@pytest.mark.parametrize(("shift", "fine"), [(ROUNDING * 0.9, True), (ROUNDING * 1.1, False)])
def test_probabilities_agree_within_rounding(shift, fine):
    assert (difference(answer("a", logprob=-0.1 - shift), answer("a")) is None) == fine


def test_an_answer_that_ends_early_is_wrong():
    assert difference(answer("a"), answer("a", "b")) == "1 tokens are not 2"


def test_steps_are_read_from_a_completion():
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -3.0}]
    choice = {"logprobs": {"content": [{"token": "a", "logprob": -0.1, "top_logprobs": top}]}}
    assert steps(choice) == [Step("a", -0.1, {"a": -0.1, "b": -3.0})]
