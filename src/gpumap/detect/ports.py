"""Ports that all ranks of a job derive alike, if their launcher sets none.

They are below Linux's ephemeral ports, which start at 32768. Their count is prime, so
that jobs whose numbers end alike get different ports.
"""

import hashlib

__all__ = ["port_of_name", "port_of_step"]

_FIRST, _COUNT = 10_000, 22_751
_STEPS_APART = 7_919


def port_of_step(job: int, step: int) -> int:
    """Return a Slurm step's port; neighbouring jobs and steps get other ports."""
    return _FIRST + (job * _STEPS_APART + step) % _COUNT


def port_of_name(job_id: str) -> int:
    """Return the port of a job, from its job id."""
    digest = hashlib.sha256(job_id.encode(errors="replace")).digest()
    return _FIRST + int.from_bytes(digest[:8], "big") % _COUNT
