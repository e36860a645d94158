"""Stage 2: how fast is each kernel alone, beside torch, libraries and the rates of the device?

Owns: the shapes. Called by: `benchmarks.lease.child`.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.lease import attention, small
from benchmarks.lease.place import Measurement, Place
from benchmarks.lease.rows import Row
from benchmarks.lease.tests_there import out as logs
from core.api.specs import KernelQuery

SHAPES = {
    "o": (4096, 4096),
    "qkv": (6144, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
"""Outputs and inputs of the products of a model of 8 B."""
ROWS = (1, 16, 64, 256, 2048, 8192)
DRAWN = 64
"""Rows of a packed weight that are drawn."""
FEW = 64
"""Rows up to which a product is bound by the bytes of its weight."""
PROFILED = ("product", "attention", "limits")


def products(place: Place) -> Iterator[Row]:
    """bfloat16 products beside torch.mm."""
    from core_kernels.triton.kernels import TritonKernels
    from core_runtime.weights.formats import Dense

    kernels = TritonKernels()
    for name, (outputs, inputs) in place.pick(SHAPES, {"o": (64, 64)}).items():
        dense = place.random(outputs, inputs)
        linear = kernels.linear(Dense(dense), activation="none")
        for rows in place.pick(ROWS, (1, 24)):
            if rows * outputs > 1 << 30:  # a head of 8,192 rows: no step asks for it
                continue
            x = place.random(rows, inputs)
            out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
            ours = place.seconds_of(lambda x=x, out=out, f=linear: f(x, out))
            theirs = place.seconds_of(lambda x=x, out=out, w=dense: torch.mm(x, w.T, out=out))
            share, of = _share(place, rows, outputs, inputs, ours)
            yield Row("", f"{name} {outputs} x {inputs}, {rows} rows", ours * 1e6, "us", share, of)
            yield Row("", f"{name}, {rows} rows: torch.mm's time by ours", theirs / ours, "x")


def packed_products(place: Place) -> Iterator[Row]:
    """Products of weights in other formats, at one shape."""
    from core_kernels.triton.kernels import TritonKernels
    from core_kit.fixtures.weights import random_weights
    from core_runtime.layers.kernels import weight_format

    kernels = TritonKernels()
    outputs, inputs = place.pick((28672, 4096), (64, 128))
    seen: set[str] = set()
    for weight in random_weights((DRAWN, inputs)):
        form = weight_format(weight)
        if form in seen or kernels.supports(KernelQuery("linear", place.device.type, form, "none", weight.shape)):
            continue
        seen.add(form)
        linear = kernels.linear(repeated(weight, outputs // DRAWN, place.device), activation="none")
        for rows in place.pick((1, 64, 2048), (2,)):
            x = place.random(rows, inputs)
            out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
            seconds = place.seconds_of(lambda x=x, out=out, f=linear: f(x, out))
            share = linear.nbytes / seconds / place.copy_rate
            yield Row("", f"{form} {outputs} x {inputs}, {rows} rows", seconds * 1e6, "us", share, "copy rate")


def repeated(weight: Any, times: int, device: torch.device) -> Any:
    """Return a weight on a device, with its rows repeated: drawing all of a large one takes a processor too long."""
    if isinstance(weight, torch.Tensor):
        rows = times if weight.shape[0] == DRAWN else 1
        return weight.to(device).repeat(rows, *(1 for _ in weight.shape[1:]))
    if dataclasses.is_dataclass(weight) and not isinstance(weight, type):
        parts = {one.name: getattr(weight, one.name) for one in dataclasses.fields(weight) if one.init}
        return dataclasses.replace(weight, **{name: repeated(part, times, device) for name, part in parts.items()})
    return weight


def _share(place: Place, rows: int, outputs: int, inputs: int, seconds: float) -> tuple[float, str]:
    """Return the share of the rate by which a product is bound."""
    if rows <= FEW:
        nbytes = 2 * (outputs * inputs + rows * (outputs + inputs))
        return nbytes / seconds / place.copy_rate, "copy rate"
    return 2 * rows * outputs * inputs / seconds / place.matmul_rate, "matmul rate"


def profiled(place: Place) -> Iterator[Row]:
    """What Nsight Compute says of three kernels."""
    tool = shutil.which("ncu")
    for name in PROFILED:
        command = [sys.executable, "-m", "benchmarks.lease.profiled", name, place.device.type]
        command.append("tiny" if place.tiny else "full")
        if tool is None or place.is_cpu:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            there = "a processor has no ncu" if place.is_cpu else "ncu is not there"
            yield Row("", f"{name}: {there}", is_fine=done.returncode == 0)
            continue
        sections = [
            word for one in ("SpeedOfLight", "MemoryWorkloadAnalysis", "WarpStateStats") for word in ("--section", one)
        ]
        measured = [tool, "--clock-control", "none", "--launch-skip", "5", "--launch-count", "3", *sections, *command]
        done = subprocess.run(measured, capture_output=True, text=True, check=False)
        (logs() / f"ncu-{name}.txt").write_text(done.stdout + done.stderr)
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        told = [
            line
            for line in lines
            if line.startswith(("DRAM Throughput", "Memory Throughput %", "Compute (SM) Throughput"))
        ]
        yield Row("", f"{name}: {'; '.join(told[:3]) or f'ncu ended with {done.returncode}'}", is_fine=bool(told))


MEASUREMENTS = (
    Measurement("products", 130, products),
    Measurement("attention", 110, attention.attention),
    Measurement("sampler", 55, small.sampler),
    Measurement("small kernels", 40, small.small_kernels),
    Measurement("experts", 60, small.experts),
    Measurement("packed products", 65, packed_products),
    Measurement("profiled", 70, profiled),
)
