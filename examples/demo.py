"""Show gpumap at work: print a plan, then train on it with two processes.

On two GPUs where there are two; else in rehearsal of a DGX A100, on devices 2 and 3.
"""

import os
import subprocess
import sys
from pathlib import Path

import gpumap

PROCESSES = 2


def main() -> int:
    """Print the plan, run examples/train.py under torchrun, return its exit code."""
    node = gpumap.detect_node()
    environ = dict(os.environ)
    if len(node.devices) >= PROCESSES:
        gpus = [0, 1]
    else:
        print("No two GPUs here: this rehearses a DGX A100 on the CPU.\n")
        gpus = [2, 3]
        node = gpumap.machine("dgx-a100")
        environ["GPUMAP_REHEARSAL"] = "dgx-a100"
    plan = gpumap.plan([node], [PROCESSES], strategy="explicit", gpus=gpus)
    print(plan.explain(), end="\n\n", flush=True)
    environ |= {"GPUS": ",".join(map(str, gpus)), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("train.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    return subprocess.run(
        [*launcher, str(PROCESSES), str(script)], env=environ, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
