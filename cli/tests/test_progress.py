"""What log lines of vLLM 0.32 say about a start."""

from functools import reduce

import pytest

from mmdisagg_cli.progress import Progress, Step, advance

LOADING = "INFO 11-30 10:00:01 [cpu_model_runner.py:68] Starting to load model /models/shapes..."
HALF = "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:10<00:10,  5.0s/it]"
LOADED = "INFO 11-30 10:00:20 [default_loader.py:502] Loading weights took 19.00 seconds"
CACHE = "INFO 11-30 10:00:22 [kv_cache_utils.py:2328] CPU KV cache size: 131,072 tokens, "
SERVING = "INFO 11-30 10:00:30 [entry.py:140] Starting vLLM server on http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "starting"),
        (["INFO Resolved architecture: Qwen2_5_VLForConditionalGeneration"], "starting"),
        ([LOADING], "loading weights"),
        ([LOADING, HALF], "loading weights 50 %"),
        ([LOADING, HALF, LOADED], "warming up"),
        ([LOADING, LOADED, CACHE], "warming up"),
        ([LOADING, LOADED, CACHE, SERVING], "answering"),
    ],
)
def test_lines_advance_the_progress(lines: list[str], words: str) -> None:
    assert reduce(advance, lines, Progress()).words == words


def test_a_role_never_goes_back() -> None:
    assert advance(Progress(Step.ANSWERING), LOADING) == Progress(Step.ANSWERING)
