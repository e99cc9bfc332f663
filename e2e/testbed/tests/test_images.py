from pathlib import Path

import pytest

from testbed import base_image
from testbed.errors import TestbedError
from testbed.images import build_options, check_name


@pytest.mark.parametrize("name", ["worker:1", "registry.invalid/worker:1", "localhost/worker"])
def test_a_name_that_a_node_would_pull_is_refused(name):
    with pytest.raises(TestbedError, match="localhost/NAME:TAG"):
        check_name(name)


def test_a_local_name_with_a_tag_is_accepted():
    assert check_name("localhost/mmdisagg/worker:1") == "localhost/mmdisagg/worker:1"


def test_the_base_image_is_given_and_can_be_overridden():
    options = build_options("localhost/a:1", Path("Dockerfile"), ["BASE_IMAGE=localhost/b:1"])
    given = [word for word in options if word.startswith("BASE_IMAGE=")]
    assert given == [f"BASE_IMAGE={base_image.name()}", "BASE_IMAGE=localhost/b:1"]


def test_nothing_is_pulled():
    assert "--pull-never" in build_options("localhost/a:1", Path("Dockerfile"), [])
