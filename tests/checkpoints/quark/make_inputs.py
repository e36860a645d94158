"""Makes `inputs.json`: digests of inputs that AMD Quark rounds at run time, by type of number and mode of the scales.

    pip install torch==2.13.0 amd-quark==0.13 && PYTHONPATH=../../.. python make_inputs.py

Scales are powers of two, one for 32 inputs, found as Quark's observers do and applied by its reference in torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from quark.torch.kernel.hw_emulation.hw_emulation_interface import scaled_fake_quantize_impl
from quark.torch.quantization.config.type import Dtype
from quark.torch.quantization.observer.observer import ObserverBase
from quark.torch.quantization.utils import calculate_qmin_qmax

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "quantization")]

from inputs_grid import grid  # noqa: E402
from maker import digest, write_json  # noqa: E402

TYPES = ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3")
MODES = ("even", "floor", "ceil")
GROUP = 32
HALF_EVEN = 8


def rounded(name: str, mode: str) -> torch.Tensor:
    """The grid of inputs as Quark rounds it."""
    x = grid()
    kind = Dtype.from_str(name)
    spec = SimpleNamespace(dtype=kind, mx_element_dtype=None)
    observer = SimpleNamespace(scale_calculation_mode=mode, qspec=spec, quant_max_first_level=None)
    largest = x.unflatten(-1, (-1, GROUP)).abs().amax(-1)
    scale = ObserverBase.get_scale(observer, largest, torch.finfo(torch.float32).eps, "e8m0")
    low, high = calculate_qmin_qmax(kind)
    zero = torch.zeros_like(scale)
    return scaled_fake_quantize_impl(name, x, scale, zero, -1, GROUP, low, high, HALF_EVEN, "per_group", "")


if __name__ == "__main__":
    write_json(
        HERE / "inputs.json",
        {f"{name}/{mode}": digest(rounded(name, mode)) for name in TYPES for mode in MODES},
    )
