"""`python -m gpumap` is the command `gpumap`."""

import sys

from gpumap.command.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
