"""Link matrices as people paste them, and the node that each describes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumap.errors import DeviceError
from gpumap.mapping.devices import Link
from gpumap.mapping.topology import parse_topology
from helpers.matrices import CUT, FOLDER, WHOLE, text


def table() -> dict[str, int]:
    """Return the number of GPUs that the index of the collected matrices has."""
    rows = (FOLDER / "INDEX-collected.tsv").read_text().splitlines()[1:]
    columns = [row.split("\t") for row in rows]
    return {row[0].removesuffix(".txt"): int(row[3]) for row in columns}


@pytest.mark.parametrize(
    "name", sorted(name for name in table() if name in WHOLE), ids=str
)
def test_every_collected_matrix_has_the_gpus_of_its_index(name: str) -> None:
    """The index was written by hand, from the machines' descriptions."""
    assert len(parse_topology(text(name)).devices) == table()[name]


@pytest.mark.parametrize("name", WHOLE)
def test_every_pair_has_one_link(name: str) -> None:
    """And none is left out."""
    node = parse_topology(text(name))
    count = len(node.devices)
    assert len({(link.a, link.b) for link in node.links}) == count * (count - 1) // 2


@pytest.mark.parametrize("name", sorted(CUT))
def test_a_matrix_that_was_cut_is_an_error(name: str) -> None:
    """Never half a machine."""
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
    """Looked up by eye in each form: tabs, spaces, glued, coloured, quoted."""
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
    """Blank, N/A, a range or the GPU's own memory node: not known."""
    assert [d.numa_node for d in parse_topology(text(name)).devices] == numa


def test_cpus_are_expanded() -> None:
    """0-23,48-71 is 24 CPUs and 24 more; single figures count too."""
    a40 = parse_topology(text("65_4xA40_cloud_asymmetric_numa")).devices[0]
    assert a40.cpu_affinity == (*range(24), *range(48, 72))
    h100 = parse_topology(text("34_4xH100_nv6_4numa_nics")).devices[0]
    assert h100.cpu_affinity == (6, 14, 22, 30)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "GPU0 GPU1\nGPU0 X NV1\n",
        "GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n",
        "GPU0 GPU1\nGPU0 X ???\nGPU1 ??? X\n",
        "GPU0 GPU2\nGPU0 X SYS\nGPU2 SYS X\n",
        "GPU0 GPU1\nGPU0 SYS X\nGPU1 X SYS\n",
        "GPU0 GPU1 GPU2\nGPU0 X SYS\nGPU1 SYS X\nGPU2 SYS SYS\n",
    ],
    ids=["empty", "short", "unlike", "unknown", "gap", "no diagonal", "cut cells"],
)
def test_what_cannot_be_read_for_certain_is_an_error(wrong: str) -> None:
    """Nothing is filled in."""
    with pytest.raises(DeviceError, match="this is not a whole link matrix"):
        parse_topology(wrong)


@given(st.sampled_from(WHOLE), st.data())
def test_a_matrix_with_characters_changed_is_a_node_or_an_error(
    name: str, data: st.DataObject
) -> None:
    """Whatever a clipboard did to it."""
    whole = text(name)
    place = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 40))
    instead = data.draw(st.text(alphabet="GPUXNV0123-,\t\n #", max_size=6))
    try:
        parse_topology(whole[:place] + instead + whole[place + length :])
    except DeviceError:
        return
