import pytest

from testbed.distribution import Release, carried_options, package_sources, read_release
from testbed.errors import TestbedError

BOOKWORM = Release("debian", "bookworm")
TARGETS = """\
Debian|http://mirror.invalid/debian/|bookworm|main|bookworm
Debian|http://mirror.invalid/debian/|bookworm-updates|main|bookworm-updates
Debian|http://mirror.invalid/debian/|trixie|main|trixie
Somebody|http://elsewhere.invalid/apt/|bookworm|main|bookworm
"""


def test_the_release_is_read_with_and_without_quotes():
    assert read_release('NAME="Debian GNU/Linux"\nID=debian\nVERSION_CODENAME="bookworm"\n') == BOOKWORM


def test_only_the_distributions_own_sources_of_this_release_are_used():
    assert package_sources(TARGETS, BOOKWORM) == [
        "deb http://mirror.invalid/debian/ bookworm main",
        "deb http://mirror.invalid/debian/ bookworm-updates main",
    ]


def test_without_sources_the_error_says_what_to_do():
    with pytest.raises(TestbedError, match="debian sid; run apt-get update"):
        package_sources(TARGETS, Release("debian", "sid"))


def test_apts_proxy_and_clock_settings_are_carried_and_empty_ones_are_not():
    dump = """\
Acquire "";
Acquire::http "";
Acquire::http::Proxy "http://proxy.invalid:3128";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
"""
    assert carried_options(dump) == [
        'Acquire::http::Proxy "http://proxy.invalid:3128";',
        'Acquire::Check-Valid-Until "false";',
    ]
