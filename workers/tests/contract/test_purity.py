"""The contract loads no engine, no tensor library and no web stack."""

import subprocess
import sys


def test_importing_the_contract_loads_nothing_heavy():
    code = (
        "import sys, mmdisagg_workers.contract; "
        "print([m for m in ('torch', 'numpy', 'vllm', 'aiohttp', 'pydantic') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
