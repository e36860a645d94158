"""Catalog rows of the attention kernels and the layers that they are compiled for.

Owns: the list of layers: the shapes of widely used models, and each variant once. Never does: compile.
Called by: the catalog of kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch

from core.api.specs import AttentionSpec, LatentSpec
from core_attention.triton.attended import TORCH_TYPES, Attended, attended, products_of
from core_attention.triton.layer import attend_constants, constants_of, with_spans, with_tails, write_constants
from core_attention.triton.layout import token_major
from core_attention.triton.limits import Cached
from core_attention.triton.plan import PLAN_WARPS
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.chips import NAMES

PACKAGE: Final = "core_attention.triton"
KINDS: Final = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.uint8: "u8",
    torch.int8: "i8",
}
"""torch dtypes as Triton's signatures name them."""

LAUNCH: Final = ("num_warps", "num_stages", "enable_fp_fusion")
"""Constants that are compiler options."""


class Case(NamedTuple):
    """A kind of layer. name: for messages. dtype: of the cache. tails: whether some keys are stored outside the block
    table. spans: whether rows see later ones. for_library: whether blocks are written as libraries read them.
    """

    name: str
    spec: Cached
    dtype: str = "bfloat16"
    queries: torch.dtype = torch.bfloat16
    block_size: int = 16
    tails: bool = False
    spans: bool = False
    for_library: bool = False


LLAMA: Final = AttentionSpec(32, 8, 128, 128, 0.088)
CASES: Final = (
    Case("Llama 3 8B", LLAMA),
    Case("Llama 3 8B with trees of drafts", LLAMA, tails=True),
    Case("Llama 3 8B, fp8 cache", LLAMA, "fp8_e4m3"),
    Case("Llama 3 8B, fp8 cache with 5 bits of exponent", LLAMA, "fp8_e5m2", torch.float16),
    Case("Llama 3 8B, int8 cache", LLAMA, "int8_per_token_head", torch.float16),
    Case("Llama 3 8B in float32", LLAMA, "float32", torch.float32),
    Case("gpt-oss, sliding", AttentionSpec(64, 8, 64, 64, 0.125, window=128, sinks=True)),
    Case("Gemma 2, sliding", AttentionSpec(16, 8, 256, 256, 0.0625, window=4096, cap=50.0)),
    Case("Phi 3, in blocks of 128", AttentionSpec(32, 32, 96, 96, 0.1), block_size=128),
    Case("Llama 4, chunks", AttentionSpec(40, 8, 128, 128, 0.088, window=8192, chunked=True)),
    Case("Bloom", AttentionSpec(32, 32, 128, 128, 0.088, alibi=True), "float16", torch.float16),
    Case("DeepSeek V3", LatentSpec(128, 512, 64, 128, 128, 0.07), block_size=64),
    Case("DeepSeek V3, fp8 cache", LatentSpec(128, 512, 64, 128, 128, 0.07), "fp8_e4m3", block_size=64),
    Case("Gemma 3 with pictures, sliding", AttentionSpec(8, 4, 256, 256, 0.0625, window=1024), spans=True),
)

TURNED: Final = (CASES[0], CASES[2], CASES[4], CASES[5], CASES[6])
"""Layers whose heads are rotated as their keys are stored: one for each cache type."""

FOR_LIBRARIES: Final = Case("Llama 3 8B, as libraries read it", LLAMA, for_library=True)
"""A layer that these kernels only write."""


def _attend(case: Case, chip: str, for_prompts: bool) -> KernelRow:
    layer = (case.spec, case.block_size, case.dtype, case.queries, chip)
    constants = attend_constants(*layer, for_prompts=for_prompts)
    if case.spans:
        constants = with_spans(constants)
    products = products_of(case.dtype, case.queries)
    query = f"*{KINDS[case.queries]}"
    signature = {"q": query, "q_rest": query, "out": query, "cache": f"*{KINDS[TORCH_TYPES[case.dtype]]}"}
    signature |= dict.fromkeys(("scales", "sinks", "slopes", "part_sums", "part_maxima", "part_weights"), "*fp32")
    signature |= dict.fromkeys(("items", "arrived", "tables", "tails"), "*i32")
    strides = ("q_row", "q_head", "rest_row", "rest_head", "out_row", "out_head")
    signature |= dict.fromkeys(("table_stride", "tail_depth", *strides), "i32")
    signature |= dict.fromkeys(("score_scale", "cap_scale", "v_scale"), "fp32")
    words = "attention of prompts" if for_prompts else "attention"
    name = f"{words}: {case.name}"
    function = f"{PACKAGE}.attend_kernel:attend"
    constants = with_tails(constants) if case.tails else constants | {"HAS_TAILS": False}
    row = _row(name, chip, function, signature, constants, not products.exact)
    if products.exact:
        return row
    has_two = _has_two_tiles(case, chip)
    return replace(
        row,
        reads=_reads(constants["LAYER"], TORCH_TYPES[case.dtype].itemsize),
        whole_rows=has_two,
        resident=2 if has_two and not for_prompts else 1,
    )


def _has_two_tiles(case: Case, chip: str) -> bool:
    """Whether a layer has a larger tile for prompts."""
    layer = (case.spec, case.dtype, case.queries, chip)
    return attended(*layer, for_prompts=True) != attended(*layer, for_prompts=False)


def _reads(layer: Attended, item_bytes: int) -> tuple[int, ...]:
    """Return the bytes of the tiles of keys, in their two parts, and of values."""
    widths = (layer.padded, layer.rest_padded if layer.rest else 0, layer.value_tile)
    return tuple(layer.keys * width * item_bytes for width in widths if width)


def _plan(case: Case, chip: str) -> KernelRow:
    own, _ = attended(case.spec, case.dtype, case.queries, chip, for_prompts=False)
    own = replace(own, has_spans=case.spans)
    signature = dict.fromkeys(("items", "sequences", "arrived", "cu_seqlens", "seq_lens"), "*i32")
    signature |= dict.fromkeys(("num_seqs", "num_tiles", "num_counters", "wanted", "room_rows"), "i32")
    constants = {"CUT": own.cut, "num_warps": PLAN_WARPS, "enable_fp_fusion": True}
    return _row(f"list of work: {case.name}", chip, f"{PACKAGE}.plan_kernel:plan", signature, constants, False)


def _write(case: Case, chip: str) -> KernelRow:
    given = f"*{KINDS[case.queries]}"
    signature = {"k": given, "v": given, "cache": f"*{KINDS[TORCH_TYPES[case.dtype]]}"}
    signature |= {"scales": "*fp32", "slots": "*i64"}
    signature |= dict.fromkeys(("k_row", "k_head", "v_row", "v_head"), "i32")
    signature |= dict.fromkeys(("k_scale", "v_scale"), "fp32")
    function = f"{PACKAGE}.write_kernel:write"
    return _row(f"cache write: {case.name}", chip, function, signature, _written(case), False)


def _written(case: Case) -> dict[str, Any]:
    """Return the constants of `write`."""
    if not case.for_library:
        return write_constants(case.spec, case.block_size, case.dtype)
    assert isinstance(case.spec, AttentionSpec)
    return constants_of(token_major(case.spec, case.block_size, case.dtype))


def _turn(case: Case, chip: str, normed: bool) -> KernelRow:
    assert isinstance(case.spec, AttentionSpec)
    write = _write(case, chip)
    given = f"*{KINDS[case.queries]}"
    signature = {"q": given, **write.signature, "positions": "*i64", "cos": "*fp32", "sin": "*fp32"}
    signature |= dict.fromkeys(("q_row", "q_head", "q_weight_head", "k_weight_head"), "i32") | {"eps": "fp32"}
    constants = _written(case) | {"Q_HEADS": case.spec.num_heads, "HALF": case.spec.head_size // 2}
    words = "turn and cache write"
    if normed:
        signature |= {"q_weight": "*fp32", "k_weight": "*fp32"}
        words = f"norm, {words}"
    else:
        constants |= {"q_weight": None, "k_weight": None}
    return _row(f"{words}: {case.name}", chip, f"{PACKAGE}.turn_kernel:turn_and_write", signature, constants, False)


def _row(
    name: str, chip: str, function: str, signature: dict[str, str], constants: dict[str, Any], uses_mma: bool
) -> KernelRow:
    own = {key: value for key, value in constants.items() if key not in LAUNCH}
    return KernelRow(
        f"{name} ({chip})",
        function,
        signature,
        own,
        chips=(chip,),
        num_warps=constants["num_warps"],
        num_stages=constants.get("num_stages", 2),
        fp_fusion=constants["enable_fp_fusion"],
        uses_mma=uses_mma,
    )


def _rows() -> list[KernelRow]:
    found = []
    for chip in NAMES:
        for case in CASES:
            found += [_attend(case, chip, False), _write(case, chip)]
            if _has_two_tiles(case, chip):
                found.append(_attend(case, chip, True))
        found += [_turn(case, chip, False) for case in TURNED]
        found += [_turn(case, chip, True) for case in TURNED[:2]]
        found += [_plan(CASES[0], chip), _plan(CASES[6], chip), _plan(CASES[9], chip), _plan(CASES[-1], chip)]
        found += [_write(FOR_LIBRARIES, chip), _turn(FOR_LIBRARIES, chip, False), _turn(FOR_LIBRARIES, chip, True)]
    return found


ROWS: Final = tuple(_rows())
