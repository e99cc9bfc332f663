"""How long the router of these tests waits: short, but longer than a busy machine needs."""

from mmdisagg_workers.router.settings import Deadlines

DEADLINES = Deadlines(connect=1.0, stage=5.0, idle=5.0, write=5.0, request=10.0)
