"""Device types that plait knows: datasheet figures, each with its source.

Rates are of dense matrix work, without sparsity, at the boost clock that the datasheet assumes. ``half`` is
bf16 or fp16 with fp32 accumulation. Makers write memory in GB but fit binary sizes: 80 GB is close to 80 GiB.
"""

import re
from dataclasses import dataclass

_T = 1e12
_G = 1e9
_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """Peak dense matrix rates in FLOP/s, memory in bytes, memory bandwidth in bytes/s; ``source`` is the datasheet."""

    fp32: float | None
    """None where the maker gives no figure."""
    half: float
    memory: float
    bandwidth: float
    source: str


def _sheet(fp32: float | None, half: float, memory: float, bandwidth: float, source: str) -> DeviceSheet:
    """A sheet of TFLOP/s, TFLOP/s, GiB and GB/s."""
    return DeviceSheet(None if fp32 is None else fp32 * _T, half * _T, memory * _GIB, bandwidth * _G, source)


DEVICES: dict[str, DeviceSheet] = {
    "H200": _sheet(67, 989, 141, 4800, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
    "H100-SXM": _sheet(67, 989, 80, 3350, "NVIDIA H100 Tensor Core GPU datasheet, SXM"),
    "H100-PCIe": _sheet(51, 756, 80, 2000, "NVIDIA H100 Tensor Core GPU datasheet, PCIe"),
    "GH200-96": _sheet(67, 990, 96, 4000, "NVIDIA GH200 Grace Hopper Superchip datasheet, 96 GB HBM3"),
    "A100-40": _sheet(19.5, 312, 40, 1555, "NVIDIA A100 Tensor Core GPU datasheet, 40 GB SXM"),
    "A100-80": _sheet(19.5, 312, 80, 2039, "NVIDIA A100 Tensor Core GPU datasheet, 80 GB SXM"),
    "A800-80": _sheet(19.5, 312, 80, 2039, "NVIDIA A800 Tensor Core GPU datasheet, 80 GB SXM (A100 but for NVLink)"),
    "L40S": _sheet(91.6, 362, 48, 864, "NVIDIA L40S GPU datasheet"),
    "L4": _sheet(30.3, 121, 24, 300, "NVIDIA L4 Tensor Core GPU datasheet"),
    "A10": _sheet(31.2, 125, 24, 600, "NVIDIA A10 Tensor Core GPU datasheet"),
    "V100-16": _sheet(15.7, 125, 16, 900, "NVIDIA V100 Tensor Core GPU datasheet, SXM2 16 GB"),
    "V100-32": _sheet(15.7, 125, 32, 900, "NVIDIA V100 Tensor Core GPU datasheet, SXM2 32 GB"),
    "T4": _sheet(8.1, 65, 16, 320, "NVIDIA T4 Tensor Core GPU datasheet; bandwidth: Turing architecture whitepaper"),
    "RTX-4090": _sheet(82.6, 165.2, 24, 1008, "NVIDIA Ada GPU architecture whitepaper, appendix A"),
    "RTX-3090": _sheet(35.6, 71, 24, 936, "NVIDIA Ampere GA102 GPU architecture whitepaper, table 9"),
    "RTX-2080Ti": _sheet(14.2, 56.9, 11, 616, "NVIDIA Turing GPU architecture whitepaper, Founders Edition"),
    "Titan-RTX": _sheet(16.3, 130.5, 24, 672, "NVIDIA Titan RTX datasheet; Turing GPU architecture whitepaper"),
    "MI250X": _sheet(47.9, 191.5, 64, 1638, "AMD Instinct MI250X data sheet, one of its two dies, as PyTorch sees it"),
    "MI300X": _sheet(163.4, 1307.4, 192, 5300, "AMD Instinct MI300X data sheet"),
    "Gaudi2": _sheet(None, 432, 96, 2450, "Intel Gaudi 2 white paper; it gives no fp32 matrix rate"),
    "Ascend-910B": _sheet(
        75, 313, 64, 1600, "Huawei Atlas 800T A2 specifications, an eighth; no chip datasheet exists"
    ),
}

_CUDA_NAMES = (
    (r"GH200", "GH200-96"),
    (r"H200", "H200"),
    (r"H100.*PCIe", "H100-PCIe"),
    (r"H100", "H100-SXM"),
    (r"A100.*40GB", "A100-40"),
    (r"A100.*80GB", "A100-80"),
    (r"A800", "A800-80"),
    (r"L40S", "L40S"),
    (r"\bL4\b", "L4"),
    (r"\bA10\b", "A10"),
    (r"V100.*16GB", "V100-16"),
    (r"V100.*32GB", "V100-32"),
    (r"\bT4\b", "T4"),
    (r"RTX 4090", "RTX-4090"),
    (r"RTX 3090", "RTX-3090"),
    (r"RTX 2080 Ti", "RTX-2080Ti"),
    (r"TITAN RTX", "Titan-RTX"),
    (r"MI250X", "MI250X"),
    (r"MI300X", "MI300X"),
)
"""Patterns in ``torch.cuda.get_device_name``, the narrower first, and the catalog's names."""


def by_driver_name(name: str) -> str:
    """The catalog's name of what the driver calls ``name`` ("NVIDIA A100-SXM4-80GB"), or that name as one word."""
    known = next((ours for pattern, ours in _CUDA_NAMES if re.search(pattern, name, re.IGNORECASE)), None)
    return known or re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")


def spelling_of(name: str) -> str | None:
    """The catalog's spelling of a name that differs in case or punctuation alone ("a100_40"), or None."""
    plain = {_plain(known): known for known in DEVICES}
    return plain.get(_plain(name))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
