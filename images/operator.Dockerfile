# The operator. The context is made by build.py.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
# 1: install from wheels/ alone.
ARG PIP_NO_INDEX=
# Hash of what is taken from the context: not every builder looks into mounts for changes.
ARG CONTENT=
ARG PIP_BREAK_SYSTEM_PACKAGES=1
RUN --mount=type=bind,target=/context \
    python3 -m pip install --no-cache-dir --no-deps --require-hashes --find-links /context/wheels \
        -r /context/requirements/operator.txt \
 && python3 -m pip install --no-cache-dir --no-deps --no-index /context/wheels/mmdisagg-*.whl
# A name for user ids that no password file knows: libraries ask for it.
ENV PYTHONUNBUFFERED=1 USER=mmdisagg
WORKDIR /
USER 65532:0
ENTRYPOINT ["python3", "-m", "mmdisagg_operator.main"]
