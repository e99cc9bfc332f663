# The engines: vLLM's own image with this project's wheel. The context is made by build.py.
ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0
FROM ${BASE_IMAGE}
# 1: install from wheels/ alone.
ARG PIP_NO_INDEX=
# Hash of what is taken from the context: not every builder looks into mounts for changes.
ARG CONTENT=
# Into the Python that has vLLM, whatever its distribution thinks of that.
ARG PIP_BREAK_SYSTEM_PACKAGES=1
USER root
RUN --mount=type=bind,target=/context \
    python3 -m pip install --no-cache-dir --no-deps --require-hashes --find-links /context/wheels \
        -r /context/requirements/worker.txt \
 && python3 -m pip install --no-cache-dir --no-deps --no-index /context/wheels/mmdisagg-*.whl
# Prefill and decode end at once where vLLM is there without NIXL, so the image is not made at all.
RUN python3 -c 'import sys; from importlib.util import find_spec as has; sys.exit("the base has vLLM without NIXL" if has("vllm") and not has("nixl") else 0)'
ENV PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:0
ENTRYPOINT ["mmdisagg-worker"]
