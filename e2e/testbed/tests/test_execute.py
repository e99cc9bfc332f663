import sys

import pytest

from testbed.errors import ProgramFailed
from testbed.execute import run, tail


def test_it_gives_what_the_program_printed():
    assert run([sys.executable, "-c", "print(input())"], stdin="hello") == "hello\n"


def test_a_failure_names_the_command_its_status_and_its_last_words():
    with pytest.raises(ProgramFailed, match=r"(?s)-c raise.*ended with 1:\nno such disk"):
        run([sys.executable, "-c", "raise SystemExit('no such disk')"])


def test_a_missing_program_is_named():
    with pytest.raises(ProgramFailed, match="no-such-program: not found"):
        run(["no-such-program"])


def test_only_the_end_of_long_output_is_shown():
    assert tail("\n".join(map(str, range(100))), lines=2) == "98\n99"
