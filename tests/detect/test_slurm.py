"""Slurm's compressed lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.detect.slurm import expand_counts, expand_hosts
from gpumap.errors import LaunchError


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("4", [4]),
        ("4(x2)", [4, 4]),
        ("2(x3),1", [2, 2, 2, 1]),
        ("8,1(x2)", [8, 1, 1]),
        ("3,1", [3, 1]),
    ],
)
def test_counts(text: str, counts: list[int]) -> None:
    """Task counts expand in the forms of Slurm's manual page and of captured jobs."""
    assert expand_counts(text) == counts


# What `scontrol show hostnames` printed for each, under Slurm 22.05.
HOSTS = {
    "n1": ["n1"],
    "n[1-2]": ["n1", "n2"],
    "n[1,3]": ["n1", "n3"],
    "gpu[001-003,007],login1": ["gpu001", "gpu002", "gpu003", "gpu007", "login1"],
    "node[08-11]": ["node08", "node09", "node10", "node11"],
    "n[98-101]": ["n98", "n99", "n100", "n101"],
    "node[009-011,100]": ["node009", "node010", "node011", "node100"],
    "node[5,1-3]": ["node5", "node1", "node2", "node3"],
    "rack[0-1]n[3-4]": ["rack0n3", "rack0n4", "rack1n3", "rack1n4"],
    "alpha,beta": ["alpha", "beta"],
    "node[5],x[1-3]": ["node5", "x1", "x2", "x3"],
    "host1.dom,host2.dom": ["host1.dom", "host2.dom"],
}


@pytest.mark.parametrize(("text", "hosts"), HOSTS.items())
def test_hosts(text: str, hosts: list[str]) -> None:
    """Host lists expand with any number of brackets; order and zeros are kept."""
    assert expand_hosts(text) == hosts


def test_hosts_with_a_suffix() -> None:
    """A suffix behind the brackets is kept: sites name interfaces with it."""
    assert expand_hosts("nid[001-002]-hsn") == ["nid001-hsn", "nid002-hsn"]


@pytest.mark.parametrize(
    "text", ["", "n[", "n[1-", "n]1[", "n[3-1]", "n[a-b]", "n[1-2", "a,,b", "n[]"]
)
def test_what_is_no_list_is_an_error(text: str) -> None:
    """A malformed host list is an error, never part of a list."""
    with pytest.raises(LaunchError, match="is no list of nodes"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["", "x", "4(2)", "4(x0)", "4(x2", "-1", "1,"])
def test_what_is_no_count_is_an_error(text: str) -> None:
    """A malformed or empty task count is an error."""
    with pytest.raises(LaunchError, match="is no list of tasks per node"):
        expand_counts(text)


@given(st.text(alphabet="n0123456789[],-(x)", max_size=24))
def test_any_text_is_a_list_or_a_launch_error(text: str) -> None:
    """Any text expands to a non-empty list or is a LaunchError."""
    for expand in (expand_counts, expand_hosts):
        try:
            assert expand(text)
        except LaunchError:
            continue
