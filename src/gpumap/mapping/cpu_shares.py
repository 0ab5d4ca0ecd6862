"""The CPUs that the ranks of a node are bound to."""

from collections.abc import Sequence
from itertools import combinations

from gpumap.errors import PlacementError
from gpumap.mapping.base import FrozenModel, Index
from gpumap.mapping.cpu_topology import CpuTopology, cores_of
from gpumap.mapping.cpus import cpu_list
from gpumap.mapping.policy import Bind, refuse_unknown_bind
from gpumap.words import plural

__all__ = ["CpuShare", "shares_of_cpus", "untold_cores"]


class CpuShare(FrozenModel):
    """The CPUs that one rank is bound to.

    Attributes:
        cpus: Logical CPUs; none if no CPU beside the rank's device is left to it.
        threads: How many threads of one operator fill them: their physical cores,
            divided among the ranks that share them, and at least 1; 0 without CPUs.
    """

    raises = PlacementError

    cpus: tuple[Index, ...] = ()
    threads: Index = 0


def shares_of_cpus(
    beside: Sequence[Sequence[int]], topology: CpuTopology, how: Bind
) -> tuple[CpuShare, ...]:
    """Return the share of each rank of a node, by local rank.

    beside: What cpus_beside() gives for each rank's device, by local rank. "numa" gives
    a rank all of these; ranks with the same CPUs share them. "exclusive" deals the
    physical cores among those ranks in contiguous runs, hyper-threads together: sizes
    differ by one core at most, and lower local ranks have the larger ones. A rank
    without CPUs has the empty share; the caller raises or logs no_cpus().

    untold_cores() says whether the topology tells the cores of these CPUs.

    Raises:
        PlacementError: how is unknown; or it is "exclusive", and there are fewer cores
            than ranks, or the CPUs of two ranks overlap without being the same.

    >>> cores = CpuTopology(cores=((0, 4), (1, 5), (2, 6), (3, 7)))
    >>> shares = shares_of_cpus([range(8)] * 2, cores, "exclusive")
    >>> [cpu_list(share.cpus) for share in shares]
    ['0-1,4-5', '2-3,6-7']
    """
    refuse_unknown_bind(how)
    wanted = [tuple(sorted(set(cpus))) for cpus in beside]
    if how == "exclusive":
        _refuse_overlaps(wanted)
    shares: list[CpuShare] = []
    for local_rank, cpus in enumerate(wanted):
        crowd = [other for other, same in enumerate(wanted) if same == cpus]
        cores = cores_of(cpus, topology)
        if how == "exclusive" and cpus:
            _refuse_fewer_cores(crowd, cores)
            cores = _part(cores, len(crowd), crowd.index(local_rank))
            crowd = [local_rank]
        own = tuple(sorted(cpu for core in cores for cpu in core))
        threads = max(len(cores) // len(crowd), 1) if cpus else 0
        shares.append(CpuShare(cpus=own, threads=threads))
    return tuple(shares)


def untold_cores(
    beside: Sequence[Sequence[int]], topology: CpuTopology, how: Bind
) -> str | None:
    """Return a warning if "exclusive" may part the hyper-threads of one core.

    beside is that of shares_of_cpus(), which counts a CPU of an unknown core as one.
    """
    wanted = [set(cpus) for cpus in beside]
    dealt = {cpu for cpus in wanted if wanted.count(cpus) > 1 for cpu in cpus}
    untold = dealt - {cpu for core in topology.cores for cpu in core}
    if how != "exclusive" or not untold:
        return None
    return (
        f"which of the CPUs {cpu_list(untold)} are hyper-threads of one core is not "
        'known: bind="exclusive" counts each as a core, and two ranks may share one.'
    )


def _part(
    cores: list[tuple[int, ...]], parts: int, number: int
) -> list[tuple[int, ...]]:
    size, more = divmod(len(cores), parts)
    first = number * size + min(number, more)
    return cores[first : first + size + (number < more)]


def _refuse_fewer_cores(crowd: list[int], cores: list[tuple[int, ...]]) -> None:
    if len(cores) < len(crowd):
        count = len(cores)
        raise PlacementError(
            f"{len(crowd)} ranks of a node share {count} physical "
            f"{plural('core', count)} beside their devices.",
            f"CPUs {cpu_list(cpu for core in cores for cpu in core)} are left to local "
            f"ranks {', '.join(map(str, crowd))}.",
            'Write bind="numa", which lets them share these CPUs; or start fewer '
            "processes on each node.",
        )


def _refuse_overlaps(wanted: list[tuple[int, ...]]) -> None:
    for (a, first), (b, second) in combinations(enumerate(wanted), 2):
        both = set(first) & set(second)
        if both and first != second:
            raise PlacementError(
                f"local ranks {a} and {b} cannot have CPUs of their own.",
                f"CPUs {cpu_list(first)} are beside the device of local rank {a}, "
                f"CPUs {cpu_list(second)} beside that of {b}; {cpu_list(both)} are "
                "both's.",
                'Write bind="numa", which lets them share.',
            )
