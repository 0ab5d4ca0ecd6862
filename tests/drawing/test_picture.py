"""Pictures of plans: what is drawn, and that the same plan is the same file."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import gpumap
from gpumap.command.main import main
from helpers.programs import run_python

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
DGX1 = gpumap.machine("dgx1-v100")
PAIRS = gpumap.machine("rtx3090x4")
MIXED = gpumap.machine("rtx3090-gtx1080")


def words(path: Path) -> list[str]:
    """Return the texts of an SVG file, which Matplotlib writes into comments."""
    return re.findall("<!-- (.*?) -->", path.read_text())


def drawn(folder: Path, nodes: Sequence[gpumap.Node], sizes: Sequence[int]) -> Path:
    """Draw a plan by the strategy "modulo" into a folder; ranks may share devices."""
    plan = gpumap.plan(nodes, sizes, strategy="modulo", oversubscribe=True)
    gpumap.picture(plan, folder / "plan.svg")
    return folder / "plan.svg"


def test_a_picture_names_nodes_products_devices_ranks_and_links(tmp_path: Path) -> None:
    """Two 3090s of four are used; four NVLinks join pairs, PCIe crosses sockets."""
    plan = gpumap.plan([PAIRS], [2], strategy="linked")
    gpumap.picture(plan, tmp_path / "plan.svg")
    assert sorted(words(tmp_path / "plan.svg")) == sorted(
        [
            *("2 ranks on 1 node, strategy linked", "rtx3090x4", "4 x RTX 3090"),
            *("rank 0", "cuda:0", "rank 1", "cuda:1", "cuda:2", "cuda:3"),
            *("4 NVLinks", "PCIe, across sockets (SYS)"),
            *("device with a rank", "device without a rank"),
        ]
    )


def test_the_links_of_a_dgx_1_are_told_apart_by_their_number(tmp_path: Path) -> None:
    """A DGX-1's V100s are joined by one NVLink, by two, or by PCIe alone."""
    found = words(drawn(tmp_path, [DGX1], [8]))
    assert {"1 NVLink", "2 NVLinks", "PCIe, across sockets (SYS)"} <= set(found)
    assert "device without a rank" not in found


def test_several_nodes_are_named_with_their_node_rank(tmp_path: Path) -> None:
    """Rank 5 is the fourth node's; products are written where they differ."""
    found = words(drawn(tmp_path, [PAIRS, MIXED], [4, 2]))
    assert {"node 0: rtx3090x4", "node 1: rtx3090-gtx1080", "rank 5"} <= set(found)
    assert {"1 x RTX 3090, 1 x GTX 1080", "RTX 3090", "GTX 1080"} <= set(found)


def test_ranks_that_share_a_device_are_listed_in_its_box(tmp_path: Path) -> None:
    """Of six ranks on four devices 0 and 4 share one; of 40, ten share each."""
    found = words(drawn(tmp_path, [PAIRS], [6]))
    assert {"ranks 0, 4", "ranks 1, 5", "rank 2", "device shared by ranks"} <= {*found}
    assert words(drawn(tmp_path, [PAIRS], [40])).count("10 ranks") == 4


def test_ranks_without_an_accelerator_share_the_cpu(tmp_path: Path) -> None:
    """A host's name is drawn as it is, whatever TeX would make of it."""
    found = words(drawn(tmp_path, [gpumap.Node(hostname="a$b$c")], [2]))
    assert {"a$b$c", "no accelerator", "ranks 0, 1", "cpu"} <= set(found)
    assert "device shared by ranks" not in found


def test_long_names_make_a_picture_no_wider(tmp_path: Path) -> None:
    """A host's and a product's names are written smaller where they are long."""
    sizes = []
    for name in ("a", "a" * 200):
        one = gpumap.Device(kind="cuda", index=0, name=name)
        other = gpumap.Device(kind="cuda", index=1, name="b")
        node = gpumap.Node(hostname=name, devices=(one, other))
        [size] = re.findall(
            r'viewBox="(.*?)"', drawn(tmp_path, [node], [2]).read_text()
        )
        sizes.append(size)
    assert sizes[0] == sizes[1]


def test_of_many_nodes_the_first_eight_are_drawn(tmp_path: Path) -> None:
    """Ten nodes have 40 ranks; the picture has the first 32 of them, and says so."""
    found = words(drawn(tmp_path, [PAIRS] * 10, [4] * 10))
    assert "40 ranks on 10 nodes, 8 of them drawn, strategy modulo" in found
    assert len([word for word in found if word.startswith("rank ")]) == 32
    assert "rank 31" in found


@pytest.mark.parametrize("ending", ["png", "svg", "PNG"])
def test_the_same_plan_is_the_same_file(ending: str, tmp_path: Path) -> None:
    """Another process draws the same bytes, and a matplotlibrc changes nothing."""
    code = (
        "import sys, gpumap\n"
        "node = gpumap.machine('rtx3090x4')\n"
        "gpumap.picture(gpumap.plan([node], [2], strategy='linked'), sys.argv[1])"
    )
    style = tmp_path / "matplotlibrc"
    style.write_text("font.size: 30\nsavefig.dpi: 30\nsvg.fonttype: none\n")
    there, here = tmp_path / f"there.{ending}", tmp_path / f"here.{ending}"
    done = run_python("-c", code, str(there), environ={"MATPLOTLIBRC": str(style)})
    assert done.returncode == 0, done.stderr
    gpumap.picture(gpumap.plan([PAIRS], [2], strategy="linked"), str(here))
    assert there.read_bytes() == here.read_bytes()


def test_another_ending_is_refused_in_words(tmp_path: Path) -> None:
    """The error names the file and what its name may end in."""
    plan = gpumap.plan([PAIRS], [4])
    with pytest.raises(gpumap.GpumapError) as caught:
        gpumap.picture(plan, tmp_path / "plan.gif")
    assert str(caught.value).splitlines() == [
        f"a picture cannot be written to {str(tmp_path / 'plan.gif')!r}.",
        "Give a file that ends in .png or .svg.",
    ]


def test_without_matplotlib_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra "plot" is named; nothing is written."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "gpumap.drawing.sheet", raising=False)
    with pytest.raises(gpumap.GpumapError) as caught:
        gpumap.picture(gpumap.plan([PAIRS], [4]), tmp_path / "plan.png")
    assert str(caught.value).splitlines() == [
        "a picture needs Matplotlib, and it is not installed.",
        "Install the extra: pip install 'gpumap-torch[plot]'.",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nodes", [1, 2])
def test_show_plots_what_it_prints(
    nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gpumap show --plot` draws the machine, nodes and ranks that it is asked for."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    file = tmp_path / "plan.svg"
    asked = f"show --machine t4x4 --nproc 3 --nodes {nodes} --plot {file}"
    assert main(asked.split()) == 0
    ranks = [word for word in words(file) if word.startswith("rank ")]
    assert ranks == [f"rank {rank}" for rank in range(3 * nodes)]


def test_rank_0_alone_plots_the_ranks_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that all nodes share, another node would write the same file."""
    launched = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    launched |= {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    launched |= {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    launched |= {"GPUMAP_REHEARSAL": "t4x4"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    for rank in (3, 2, 1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank % 2))
        monkeypatch.setenv("GROUP_RANK", str(rank // 2))
        main(["show", "--plot", str(tmp_path / f"{rank}.svg")])
    assert list(tmp_path.iterdir()) == [tmp_path / "0.svg"]
    ranks = [word for word in words(tmp_path / "0.svg") if word.startswith("rank ")]
    assert ranks == ["rank 0", "rank 1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--nproc 5", "nothing was drawn."),
        ("--nproc 2 --plot {}/plan.gif", "nothing was drawn: a picture cannot be"),
        ("--nproc 2 --plot {}/nowhere/plan.png", "nothing was drawn: [Errno 2]"),
    ],
)
def test_show_says_why_nothing_was_drawn(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan's own error comes first; the exit code is 1."""
    asked = f"show --machine t4x4 --plot {tmp_path}/plan.png {options}"
    assert main(asked.format(tmp_path).split()) == 1
    assert said in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
