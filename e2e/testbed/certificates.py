"""An authority of the instance's own and what it signs, made by ``openssl`` (3.0 or later)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.execute import run

DAYS = "3650"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True)
class Certificates:
    """The files of one instance.

    Attributes:
        folder: Holds ``NAME.crt`` and ``NAME.key`` for ``ca`` (the authority),
            ``server`` (API server and store) and ``client`` (the API server
            towards kubelets and the store), and ``tokens.key``, which signs the
            tokens of service accounts.
    """

    folder: Path

    def certificate(self, name: str) -> Path:
        """The certificate of that name."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """The private key of that name."""
        return self.folder / f"{name}.key"

    def issue(self, addresses: Sequence[str]) -> None:
        """Make all files.

        Args:
            addresses: IP addresses at which the API server is reached.

        Raises:
            ProgramFailed: openssl failed.
        """
        self._authority()
        self._leaf("server", "/CN=testbed", subject_alternative_names(addresses))
        self._leaf("client", "/O=system:masters/CN=testbed-apiserver", "DNS:testbed-apiserver")
        # The API server reads elliptic keys only in the older of the two encodings, which this writes.
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key("tokens")])

    def _authority(self) -> None:
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        self._request("ca", "/CN=testbed-ca", extensions)

    def _leaf(self, name: str, subject: str, names: str) -> None:
        # The store calls itself with its own certificate, so the server's is a client's too.
        extensions = (
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=serverAuth,clientAuth",
            f"subjectAltName={names}",
        )
        signer = ("-CA", str(self.certificate("ca")), "-CAkey", str(self.key("ca")))
        self._request(name, subject, extensions, signer)

    def _request(
        self, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str] = ()
    ) -> None:
        added = [word for extension in extensions for word in ("-addext", extension)]
        files = ["-keyout", str(self.key(name)), "-out", str(self.certificate(name))]
        # Without this the system's own configuration would add extensions a second time.
        plain = ["-config", "/dev/null"]
        run(
            [
                *("openssl", "req", "-x509", "-days", DAYS, "-subj", subject),
                *(*NEW_KEY, *plain, *files, *signer, *added),
            ]
        )


def subject_alternative_names(addresses: Sequence[str]) -> str:
    """The names of an API server's certificate, in openssl's notation."""
    return ",".join([*(f"DNS:{name}" for name in API_NAMES), *(f"IP:{address}" for address in addresses)])
