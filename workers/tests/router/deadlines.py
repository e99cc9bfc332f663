"""How long the router of these tests waits: short, but longer than a busy machine needs."""

from mmdisagg_workers.router.settings import Deadlines

DEADLINES = Deadlines(connect=10.0, stage=20.0, idle=20.0, write=20.0, request=40.0)
