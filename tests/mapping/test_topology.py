"""Link matrices as people paste them, and the node that each describes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Device, Link, Node
from gpumap.mapping.topology import parse_topology
from helpers.matrices import CUT, FOLDER, WHOLE, text


def table() -> dict[str, int]:
    """Return how many GPUs the index file gives for each collected matrix."""
    rows = (FOLDER / "INDEX-collected.tsv").read_text().splitlines()[1:]
    columns = [row.split("\t") for row in rows]
    return {row[0].removesuffix(".txt"): int(row[3]) for row in columns}


@pytest.mark.parametrize(
    "name", sorted(name for name in table() if name in WHOLE), ids=str
)
def test_every_collected_matrix_has_the_gpus_of_its_index(name: str) -> None:
    """A parsed matrix has as many GPUs as the index, written by hand, says."""
    assert len(parse_topology(text(name)).devices) == table()[name]


@pytest.mark.parametrize("name", WHOLE)
def test_every_pair_has_one_link(name: str) -> None:
    """A parsed node has exactly one link for each pair of devices."""
    node = parse_topology(text(name))
    count = len(node.devices)
    assert len({(link.a, link.b) for link in node.links}) == count * (count - 1) // 2


@pytest.mark.parametrize("name", sorted(CUT))
def test_a_matrix_that_was_cut_is_an_error(name: str) -> None:
    """A matrix that was cut off is an error, never part of a machine."""
    with pytest.raises(DeviceError, match="this is not a whole link matrix"):
        parse_topology(text(name))


@pytest.mark.parametrize(
    ("name", "a", "b", "link"),
    [
        ("dgx1-v100", 0, 3, {"nvlinks": 2}),
        ("dgx1-v100", 0, 5, {"pcie": "SYS"}),
        ("20_dgx1_8xP100_soc_glued_header", 0, 5, {"pcie": "SYS"}),
        ("38_dgxh100_glued_nic_columns", 6, 7, {"nvlinks": 18}),
        ("50_2gpu_nv12_ansi_header", 0, 1, {"nvlinks": 12}),
        ("51_4xA100_topo_mp_hash_prefixed", 0, 3, {"pcie": "SYS"}),
        ("16_8xMI308X_rocm_showtopo", 2, 5, {"xgmi": True}),
        ("rocm-pcie-x4", 0, 1, {}),
        ("17_metax_8x_mx_smi", 0, 3, {"xgmi": True}),
        ("17_metax_8x_mx_smi", 0, 4, {"pcie": "NODE"}),
        ("t4x4", 1, 2, {"pcie": "NODE"}),
        ("05_8x_savio4_pxb_pix", 2, 3, {"pcie": "PIX"}),
    ],
)
def test_cells_are_read_as_they_stand(
    name: str, a: int, b: int, link: dict[str, object]
) -> None:
    """Links are those read by eye: tabs, spaces, glued, coloured, quoted cells."""
    links = {(x.a, x.b): x for x in parse_topology(text(name)).links}
    assert links[a, b] == Link.model_validate({"a": a, "b": b, **link})


@pytest.mark.parametrize(
    ("name", "numa"),
    [
        ("04_polaris_4xA100_numa_reversed", [3, 2, 1, 0]),
        ("52_dgxa100_8xA100_12_mlx5", [3, 3, 1, 1, 7, 7, 5, 5]),
        ("02_ibm_ac922_4xV100_nv3", [0, 0, 8, 8]),
        ("rtx3090x2-blank-numa", [None, 1]),
        ("43_2xA100_blank_cpu_and_numa", [None, None]),
        ("49_3xRTX3060Ti_numa_range", [None, None, None]),
        ("37_4xGH200_nv6_gpu_numa_ids", [None, None, None, None]),
        ("17_metax_8x_mx_smi", [0] * 8),
        ("16_8xMI308X_rocm_showtopo", [0, 0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_numa_nodes_are_read_where_they_are_told(
    name: str, numa: list[int | None]
) -> None:
    """A NUMA cell that is blank, N/A, a range or the GPU's own memory gives None."""
    assert [d.numa_node for d in parse_topology(text(name)).devices] == numa


def test_rocm_smi_describes_devices_of_amd() -> None:
    """Devices that rocm-smi lists have rocm=True, those of nvidia-smi rocm=False."""
    names = ("16_8xMI308X_rocm_showtopo", "65_4xA40_cloud_asymmetric_numa")
    assert [{d.rocm for d in parse_topology(text(n)).devices} for n in names] == [
        {True},
        {False},
    ]


def test_cpus_are_expanded() -> None:
    """CPU affinities are expanded: 0-23,48-71 is 48 CPUs; single CPUs count too."""
    a40 = parse_topology(text("65_4xA40_cloud_asymmetric_numa")).devices[0]
    assert a40.cpu_affinity == (*range(24), *range(48, 72))
    h100 = parse_topology(text("34_4xH100_nv6_4numa_nics")).devices[0]
    assert h100.cpu_affinity == (6, 14, 22, 30)


def test_a_matrix_is_a_node_in_every_field() -> None:
    """A matrix of two bridged cards gives every field of its node."""
    found = parse_topology(
        "     GPU0 GPU1 CPU Affinity NUMA Affinity\n"
        "GPU0  X   NV4      0-1           0\n"
        "GPU1 NV4   X       2,3           1\n",
        "n1",
    )
    first = Device(
        kind="cuda", index=0, physical_index=0, numa_node=0, cpu_affinity=(0, 1)
    )
    second = Device(
        kind="cuda", index=1, physical_index=1, numa_node=1, cpu_affinity=(2, 3)
    )
    assert found == Node(
        hostname="n1", devices=(first, second), links=(Link(a=0, b=1, nvlinks=4),)
    )


@pytest.mark.parametrize(
    ("cells", "numa", "cpus"),
    [
        ("0-7,16-23", None, (*range(8), *range(16, 24))),
        # One range could be a range of NUMA nodes as well.
        ("64-127", None, None),
        ("1", None, None),
        ("0-3 0-1", None, (0, 1, 2, 3)),
        ("0-3 \N{ARABIC-INDIC DIGIT ONE}", None, (0, 1, 2, 3)),
        ("0-3 N/A", None, (0, 1, 2, 3)),
        ("N/A 2", 2, None),
    ],
)
def test_a_cell_that_can_be_two_things_is_not_read(
    cells: str, numa: int | None, cpus: tuple[int, ...] | None
) -> None:
    """A cell that may belong to the CPU or to the NUMA column is not read."""
    header = "GPU0 CPU Affinity NUMA Affinity"
    [device] = parse_topology(f"{header}\nGPU0 X {cells}\n").devices
    assert (device.numa_node, device.cpu_affinity) == (numa, cpus)


def test_what_stands_around_a_matrix_is_passed_over() -> None:
    """Colours, a repeated matrix and other tables around a matrix are ignored."""
    alone = parse_topology("GPU0\nGPU0 X\n")
    assert alone.hostname == "unknown"
    assert len(alone.devices) == 1
    coloured = (
        "GPU0 GPU1\n\x1b[4mGPU0\x1b[0m X SYS\nGPU1 \x1b[1m\x1b[KSYS\x1b[m\x1b[K X\n"
    )
    assert parse_topology(coloured).links == (Link(a=0, b=1, pcie="SYS"),)
    once = text("t4x4")
    assert parse_topology(once + once) == parse_topology(once)
    hops = "Hops between two GPUs\nGPU0\nGPU0 0\n"
    of_amd = f"{hops}Link Type between two GPUs\nGPU0\nGPU0 0\n"
    assert len(parse_topology(of_amd).devices) == 1


AMD = "Link Type between two GPUs\n"


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        ("", "nvidia-smi lists 0 GPUs in its header and 0 rows of links."),
        (
            "GPU0 GPU1\nGPU0 X NV1\n",
            "nvidia-smi lists 2 GPUs in its header and 1 row of links.",
        ),
        (
            "GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n",
            "The cell of GPU0 and GPU1 is 'NV1'.",
        ),
        (
            "GPU0 GPU1\nGPU0 X ???\nGPU1 SYS X\n",
            "The cell of GPU0 and GPU1 is '???'.",
        ),
        (
            "GPU0 GPU2\nGPU0 X SYS\nGPU2 SYS X\n",
            "nvidia-smi lists 2 GPUs in its header and 2 rows of links.",
        ),
        (
            "GPU0 GPU1\nGPU0 SYS X\nGPU1 X SYS\n",
            "The cell of GPU0 and GPU0 is 'SYS'.",
        ),
        (
            "GPU0 GPU1 GPU2\nGPU0 X SYS SYS\nGPU1 SYS X\nGPU2 SYS SYS X\n",
            "The row of GPU1 has 2 of 3 cells.",
        ),
        (
            f"{AMD}GPU0 GPU1\nGPU0 0 XGMI\n",
            "rocm-smi lists 2 GPUs in its header and 1 row of links.",
        ),
    ],
    ids=lambda value: value.replace("\n", "|"),
)
def test_what_cannot_be_read_for_certain_is_an_error(wrong: str, seen: str) -> None:
    """A missing, odd or contradictory cell is an error that says where it is."""
    with pytest.raises(DeviceError) as caught:
        parse_topology(wrong)
    assert caught.value.args == (
        "this is not a whole link matrix.",
        seen,
        "Give all that `nvidia-smi topo -m` or `rocm-smi --showtopo` prints.",
    )


@given(st.sampled_from(WHOLE), st.data())
def test_a_matrix_with_characters_changed_is_a_node_or_an_error(
    name: str, data: st.DataObject
) -> None:
    """A matrix with random edits is parsed, or raises DeviceError."""
    whole = text(name)
    place = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 40))
    instead = data.draw(st.text(alphabet="GPUXNV0123-,\t\n #", max_size=6))
    try:
        parse_topology(whole[:place] + instead + whole[place + length :])
    except DeviceError:
        return
