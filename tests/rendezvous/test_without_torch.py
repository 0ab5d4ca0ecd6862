"""What a rank needs before its script starts does not import torch."""

import json

import pytest

from helpers.programs import run_python

MODULES = (
    "failures fingerprint gathering journal keys meeting_place members messages",
    "model_digest node_decision nodes peers procfs roll_call session_store",
    "store_client store_connection store_language store_server store_table tcp verdict",
)


@pytest.mark.parametrize("heavy", ["torch", "numpy"])
def test_the_ranks_meet_without_torch(heavy: str) -> None:
    """Importing these modules imports neither torch, which takes seconds, nor numpy."""
    imports = "; ".join(
        f"import gpumap.rendezvous.{name}" for name in " ".join(MODULES).split()
    )
    ended = run_python(
        "-c",
        f"{imports}; import json, sys; print(json.dumps('{heavy}' in sys.modules))",
    )
    assert json.loads(ended.stdout) is False, ended.stderr
