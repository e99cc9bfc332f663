import shutil
import stat

import pytest

from testbed.certificates import Certificates, subject_alternative_names
from testbed.execute import run
from testbed.layout import private_folder


def test_names_and_addresses_are_in_openssls_notation():
    names = subject_alternative_names(["198.18.0.1", "127.0.0.1"]).split(",")
    assert {"DNS:kubernetes.default.svc", "DNS:localhost", "IP:198.18.0.1", "IP:127.0.0.1"} <= set(names)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    issued = Certificates(private_folder(tmp_path_factory.mktemp("certificates")))
    issued.issue(["198.18.0.1"])
    return issued


@pytest.mark.parametrize("name", ["server", "client"])
def test_the_authority_signs_certificates_for_both_directions(certificates, name):
    ca = certificates.certificate("ca")
    for purpose in ("sslserver", "sslclient"):
        run(
            [
                "openssl",
                "verify",
                "-x509_strict",
                "-purpose",
                purpose,
                "-CAfile",
                ca,
                certificates.certificate(name),
            ]
        )


def test_the_server_is_known_by_its_address(certificates):
    text = run(["openssl", "x509", "-in", certificates.certificate("server"), "-noout", "-text"])
    assert "IP Address:198.18.0.1" in text


def test_kubernetes_can_read_the_key_for_tokens(certificates):
    assert certificates.key("tokens").read_text().startswith("-----BEGIN EC PRIVATE KEY-----")


def test_nobody_else_may_enter_the_folder(certificates):
    assert stat.S_IMODE(certificates.folder.stat().st_mode) == 0o700
