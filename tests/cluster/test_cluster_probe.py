"""This machine as a cluster, and the catalog's names for what drivers report."""

import os

import pytest

from plait.cluster import catalog, probe
from plait.cluster.spec import Cluster
from plait.errors import ClusterError


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("Tesla V100-SXM2-16GB", "V100-16"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200-96"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080Ti"),
        ("NVIDIA TITAN RTX", "Titan-RTX"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A10G", "NVIDIA-A10G"),
        ("Some New (tm) Chip", "Some-New-tm-Chip"),
    ],
)
def test_driver_names_map_to_the_catalog_or_to_one_word(driver: str, name: str) -> None:
    assert catalog.by_driver_name(driver) == name


def test_every_sheet_names_its_source_and_is_plausible() -> None:
    for name, sheet in catalog.DEVICES.items():
        assert len(sheet.source) > 15, name
        assert 5e12 < (sheet.fp32 or 5.1e12) < sheet.half < 2e15, name
        assert 8 * 2**30 < sheet.memory < 200 * 2**30, name
        assert 2e11 < sheet.bandwidth < 1e13, name


def test_cores_are_devices_like_local_that_share_the_memory() -> None:
    cluster = probe.probe(devices="cpu")
    assert len(cluster.devices) == len(os.sched_getaffinity(0))
    assert {d.like for d in cluster.devices} == {"local"}
    total = sum(d.memory for d in cluster.devices)
    assert 2**28 < total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert Cluster.parse(cluster.dump()) == cluster


def test_cuda_devices_are_grouped_by_kind_with_the_memory_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("Tesla T4", 15e9), ("Tesla T4", 14e9), ("NVIDIA A10G", 23e9)]
    monkeypatch.setattr(probe, "_cuda_devices", lambda: found)
    devices = probe.probe().devices
    assert [(d.type, d.like, d.memory) for d in devices] == [
        ("T4-here", "T4", 14e9),
        ("T4-here", "T4", 14e9),
        ("NVIDIA-A10G-here", "NVIDIA-A10G", 23e9),
    ]


def test_asking_for_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_cuda_devices", list)
    with pytest.raises(ClusterError, match="no CUDA device"):
        probe.probe(devices="cuda")
    with pytest.raises(ClusterError, match="'tpu' must be auto, cpu or cuda"):
        probe.probe(devices="tpu")
