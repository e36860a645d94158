"""Catalog rows of the state kernels, for the layers of some models.

Owns: the list of layers. Never does: compile. Called by: the catalog of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import triton

from core_attention.triton.states.chunk_kernel import CHUNK
from core_attention.triton.states.common import CHANNEL_TILE
from core_attention.triton.states.recurrence import (
    CHUNK_STAGES,
    CHUNK_TILES,
    CHUNKED,
    ChunkTile,
    Recurrence,
    recurrence,
)
from core_attention.triton.states.rest import PRODUCT_STEP, PRODUCT_TILE
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.chips import LEAST, NAMES

PACKAGE: Final = "core_attention.triton.states"
WORDS: Final = 8192
"""Numbers per block."""
WINDOW: Final = 1024
"""Numbers of the window before a state."""


class Scanned(NamedTuple):
    """A recurrence. shared: key heads, or groups. rows, size: of a head's state."""

    name: str
    op: str
    heads: int
    shared: int
    rows: int
    size: int


SCANS: Final = (
    Scanned("Falcon Mamba", "mamba1", 1, 1, 8192, 16),
    Scanned("Granite 4", "mamba2", 48, 1, 64, 128),
    Scanned("Qwen3 Next", "gated_delta", 32, 16, 128, 128),
    Scanned("Kimi Linear", "kda", 32, 32, 128, 128),
)
PLACES: Final = {"cu_seqlens": "*i32", "seq_lens": "*i32", "tables": "*i32", "table_stride": "i32"}
CHUNK_SCALARS: Final = ("beta_scale", "eps", "dt_scale", "dt_min", "dt_max")


def _recurrence(case: Scanned, chip: str) -> Recurrence:
    return recurrence(case.op, case.heads, case.shared, case.rows, case.size, WINDOW, WORDS, has_floor=False, chip=chip)


def _scan(case: Scanned) -> KernelRow:
    signature = dict.fromkeys(("mixed", "selected", "out", "cache", "rate", "dt_bias"), "*fp32")
    given = "*fp32" if case.op == "mamba1" else "*bf16"
    signature |= {"steps": given, "betas": given} | PLACES
    signature |= dict.fromkeys(("mixed_row", "steps_row", "selected_row", "betas_row", "out_row"), "i32")
    scalars = ("beta_scale", "eps", "dt_scale", "dt_min", "dt_max", "decay_floor")
    signature |= dict.fromkeys(scalars, "fp32")
    constants = {"SCAN": _recurrence(case, LEAST), "PART": "all", "CHUNK": CHUNK.value}
    return _row(f"scan of {case.name}", "scan_kernel:scan", signature, constants)


def _chunked(case: Scanned, chip: str) -> Iterator[KernelRow]:
    is_nvidia = chip.startswith("sm_")
    constants = {"SCAN": _recurrence(case, chip), "PRECISION": "tf32x3" if is_nvidia else "ieee"}
    shared = {"mixed": "*fp32", "squares": "*fp32", "mixed_row": "i32"}
    alone = shared | {"steps": "*bf16", "betas": "*bf16", "steps_row": "i32", "betas_row": "i32"}
    alone |= {"rate": "*fp32", "dt_bias": "*fp32", "cu_seqlens": "*i32", "seq_lens": "*i32", "num_seqs": "i32"}
    alone |= dict.fromkeys(CHUNK_SCALARS, "fp32")
    chained = shared | {"out": "*fp32", "cache": "*fp32", "out_row": "i32"} | PLACES
    for what, name, signature in (("tokens of a chunk", "relate", alone), ("chunks", "advance", chained)):
        yield KernelRow(
            f"state: {what} of {case.name} ({chip})",
            f"{PACKAGE}.chunk_kernel:{name}",
            signature,
            constants,
            chips=(chip,),
            num_warps=CHUNK_TILES.get(chip, ChunkTile()).warps,
            num_stages=CHUNK_STAGES,
            fp_fusion=False,
            uses_mma=is_nvidia and chip != "sm_100",
        )


def _convolve(gated: bool) -> list[KernelRow]:
    constants = {"CHANNELS": 2048, "TILE": CHANNEL_TILE, "PAST": 3, "WORDS": WORDS, "GATED": gated}
    signature = {"x": "*bf16", "cache": "*fp32", "x_row": "i32"} | PLACES
    whole = {
        "out": "*bf16" if gated else "*fp32",
        "taps": "*fp32",
        "bias": "*fp32",
        "num_seqs": "i32",
        "out_row": "i32",
    }
    words = "short convolution" if gated else "convolution"
    return [
        _row(words, "convolve_kernel:convolve", signature | whole, constants | {"HAS_BIAS": True}),
        _row(f"window of a {words}", "convolve_kernel:slide", signature, constants),
    ]


def _product(name: str, outputs: int, inputs: int, softplus: bool) -> KernelRow:
    signature = dict.fromkeys(("x", "weight", "bias", "out"), "*fp32") | {"x_row": "i32", "out_row": "i32"}
    constants = {"OUTPUTS": outputs, "INPUTS": inputs, "TILE": PRODUCT_TILE, "STEP": PRODUCT_STEP, "SOFTPLUS": softplus}
    return _row(f"product of {name}", "finish_kernel:product", signature, constants)


def _norm_part() -> KernelRow:
    signature = {"x": "*fp32", "weight": "*fp32", "x_row": "i32", "eps": "fp32"}
    return _row(
        "norm of mamba1", "finish_kernel:norm_part", signature, {"WIDTH": 256, "PADDED": 256, "HAS_WEIGHT": True}
    )


def _finish(name: str, width: int, unit: int, skip_width: int, norm: str, sigmoid: bool) -> KernelRow:
    signature = dict.fromkeys(("y", "mixed", "skip", "weight"), "*fp32") | {"gates": "*bf16", "out": "*bf16"}
    signature |= dict.fromkeys(("y_row", "mixed_row", "gates_row", "out_row"), "i32")
    signature |= {"gate_scale": "fp32", "eps": "fp32"}
    constants = {
        "WIDTH": width,
        "UNIT": unit,
        "PADDED": triton.next_power_of_2(unit),
        "SKIP_WIDTH": skip_width,
        "NORM": norm,
        "WEIGHT_SHARED": skip_width == 0,
        "SIGMOID": sigmoid,
    }
    return _row(f"gate of {name}", "finish_kernel:finish", signature, constants)


def _row(name: str, function: str, signature: dict[str, str], constants: dict[str, Any]) -> KernelRow:
    return KernelRow(f"state: {name}", f"{PACKAGE}.{function}", signature, constants, fp_fusion=False)


ROWS: Final = (
    *(_scan(case) for case in SCANS),
    *(row for case in SCANS if case.op in CHUNKED for chip in NAMES for row in _chunked(case, chip)),
    *_convolve(False),
    *_convolve(True),
    _product("Falcon Mamba", 544, 8192, False),
    _product("Falcon Mamba's dt", 8192, 512, True),
    _norm_part(),
    _finish("Falcon Mamba", 8192, CHANNEL_TILE, 1, "none", False),
    _finish("Granite 4", 3072, 3072, 64, "after_gate", False),
    _finish("Qwen3 Next", 4096, 128, 0, "before_gate", False),
    _finish("Kimi Linear", 4096, 128, 0, "before_gate", True),
)
