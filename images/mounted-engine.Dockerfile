# A base for worker.Dockerfile whose vLLM lies in a volume at /engine: the virtual environment of a Python of the
# same version. For test clusters: the environment is 6.7 GB, and its CPU build has no image that could be a base.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}
RUN ldconfig -p | grep --quiet libnuma.so.1 \
 || (apt-get update && apt-get install --yes --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*)
RUN python3 -c 'import sys, sysconfig; from pathlib import Path; \
site = Path(sysconfig.get_path("purelib")); site.mkdir(parents=True, exist_ok=True); \
(site / "engine.pth").write_text("/engine/lib/python%d.%d/site-packages\n" % sys.version_info[:2])'
