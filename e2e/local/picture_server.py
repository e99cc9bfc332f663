"""A web server with one picture that counts its hits, and knows which process each one came from."""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil

from mmdisagg_cli.scenes import png, scene

PICTURE = scene(random.Random(5)).picture
TO_METADATA = "/redirect-to-metadata"


class PictureServer:
    """Answers every path that ends in `.png` with `PICTURE`."""

    def __init__(self, url: str) -> None:
        """`url` has no slash at its end."""
        self.url = url
        self.sessions: dict[str, list[int]] = defaultdict(list)

    def hits(self, path: str) -> int:
        """How often a path was asked for."""
        return len(self.sessions[path])


def served_pictures(host: str) -> Iterator[PictureServer]:
    """Run the server on a free port of an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            pictures.sessions[self.path].append(_session(self.client_address[1]))
            if self.path == TO_METADATA:
                self.send_response(302)
                self.send_header("Location", "http://169.254.169.254/latest/meta-data")
                self.end_headers()
                return
            found = self.path.endswith(".png")
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(png(PICTURE) if found else b"not here")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    pictures = PictureServer(f"http://{host}:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield pictures
    server.shutdown()


def _session(port: int) -> int:
    """The session (in local mode: the role) of the process on this machine that connected from `port`."""
    sockets = psutil.net_connections("tcp")
    pids = [one.pid for one in sockets if one.pid and one.laddr and one.laddr.port == port]
    return os.getsid(pids[0])
