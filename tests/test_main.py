"""`python -m gpumap` shows what is there and changes nothing."""

import pytest

from gpumap.__main__ import main


@pytest.fixture(autouse=True)
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be rank 1 of 2 on a rehearsed DGX A100."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    variables |= {"LOCAL_WORLD_SIZE": "2", "GPUMAP_REHEARSAL": "dgx-a100"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_it_shows_launch_node_and_placement(capsys: pytest.CaptureFixture[str]) -> None:
    """Of this rank alone."""
    assert main(["--gpus", "2,GPU-a1000005"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == (
        "launch: torch variables, rank 1 of 2, local rank 1 of 2, node 0 of 1, "
        "store ?:?"
    )
    assert out[1].startswith("node: dgx-a100 (rehearsal of dgx-a100). Visible on dgx-")
    assert [line.split()[:5] for line in out[3:]] == [
        ["1", "0", "dgx-a100", "1", "cuda:5"]
    ]


def test_it_shows_the_plan_of_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    """All ranks of this node, as this rank works them out."""
    assert main(["--plan", "--gpus", "2,3"]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split()[4] for row in rows] == ["cuda:2", "cuda:3"]


def test_it_says_what_would_stop_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    """In the error's own words, with exit code 1."""
    assert main(["--gpus", "2,9"]) == 1
    assert "DeviceError: there is no device 9 on dgx-a100." in capsys.readouterr().out


def test_a_launch_that_contradicts_itself_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shown that was not read."""
    monkeypatch.setenv("RANK", "7")
    assert main([]) == 1
    assert capsys.readouterr().out.startswith("LaunchError: rank 7 is out of range")


@pytest.mark.parametrize("wrong", ["", "2,,3"])
def test_an_empty_entry_is_told_with_its_option(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As argparse does, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(["--gpus", wrong])
    assert caught.value.code == 2
    assert "argument --gpus" in capsys.readouterr().err


def test_two_ranks_on_one_device_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """As a session would."""
    assert main(["--plan", "--strategy", "modulo", "--gpus", "2"]) == 1
    out = capsys.readouterr().out
    assert "PlacementError: rank 0 and rank 1 are both placed on cuda:2" in out
