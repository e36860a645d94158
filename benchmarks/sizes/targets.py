"""What this project wants of real sizes: ratios to other engines, and shares of the memory's bandwidth.

Owns: the aims as rows, and the bytes that one token reads. Never does: measure. Called by: the report.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.sizes.files import RECIPES, nbytes, nbytes_of
from benchmarks.sizes.models import MODELS
from benchmarks.sizes.results import Case, Results
from benchmarks.sizes.tensors import tensors


@dataclass(frozen=True, slots=True)
class Aim:
    """peer: the engine of whose figure ours is to be at least `bound` times; None: `bound` is a share of the bandwidth."""

    model: str
    form: str
    row: str
    figure: str
    peer: str | None
    bound: float


PREFILL, DECODE = "prefill tok/s", "decode tok/s"
AIMS = (
    Aim("llama-8b", "Q4_K_M", "128x1", DECODE, "ik_llama.cpp", 1.1),
    Aim("llama-8b", "Q4_K_M", "1kx1", PREFILL, "ik_llama.cpp", 1.5),
    Aim("llama-8b", "Q4_K_M", "8kx1", PREFILL, "ik_llama.cpp", 1.8),
    Aim("llama-8b", "Q4_K_M", "128x16", DECODE, "llama.cpp", 2.0),
    Aim("llama-8b", "Q4_K_M", "128x16", DECODE, "openvino", 1.3),
    Aim("llama-8b", "Q4_K_M, KV of 8 bits", "32kx1", DECODE, "ik_llama.cpp", 1.2),
    Aim("llama-8b", "Q4_K_M, KV of 8 bits", "32kx1", PREFILL, "ik_llama.cpp", 1.5),
    Aim("qwen3-30b-a3b", "Q4_K_M", "128x1", DECODE, "ik_llama.cpp", 1.1),
    Aim("qwen3-30b-a3b", "Q4_K_M", "128x1", DECODE, None, 0.85),
    Aim("qwen3-30b-a3b", "Q4_K_M", "4kx1", PREFILL, "ik_llama.cpp", 1.8),
    Aim("gpt-oss-20b", "MXFP4", "128x1", DECODE, None, 0.85),
    Aim("gpt-oss-20b", "MXFP4", "1kx1", PREFILL, "llama.cpp", 1.5),
    Aim("qwen3.5-0.8b", "bf16", "128x1", DECODE, None, 0.85),
    Aim("qwen3.5-0.8b", "bf16", "128x16", DECODE, "llama.cpp", 3.0),
    Aim("qwen3.5-0.8b", "bf16", "4kx1", PREFILL, "llama.cpp", 2.0),
)


def active_bytes(case: Case) -> int:
    """Bytes of weights that decoding one token reads: everything but the embedding, and of the experts the chosen ones.

    bf16: of a dense model whose embedding is the head too (see `counted`).
    """
    config = MODELS[case.model].cut(case.layers)
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts") or 1
    chosen = config.get("num_experts_per_tok") or 1
    if case.form == "bf16":
        return nbytes(case.model, case.form, case.layers)
    total = 0.0
    for tensor in tensors(config):
        if tensor.use == "embedding":
            continue
        share = chosen / experts if tensor.use.startswith("experts") else 1.0
        total += share * nbytes_of(tensor, case.form)
    return int(total)


def counted(case: Case) -> bool:
    """Whether `active_bytes` knows the case: GGUF files, and bf16 where a token reads every weight."""
    config = MODELS[case.model].config
    return case.form in RECIPES or (
        case.form == "bf16" and config["tie_word_embeddings"] and "num_experts" not in config
    )


def share_of_bandwidth(results: Results, case: Case, row: str) -> float | None:
    """Median over runs of the bytes that decoding read each second, divided by what was read beside it; None without."""
    if not counted(case):
        return None
    shares = []
    for line in results.of(case):
        if line["engine"] == "core" and line["row"] == row and "figures" in line:
            read = line["figures"][DECODE] * active_bytes(case) / 1e9
            shares.append(read / line["read GB/s"])
    return statistics.median(shares) if shares else None


def reached(results: Results) -> Iterator[tuple[Aim, Case, float]]:
    """Every aim that was measured, of each number of layers, with the figure that it has."""
    for aim in AIMS:
        for case in results.cases():
            if (case.model, case.form) != (aim.model, aim.form):
                continue
            if aim.peer is None:
                found = share_of_bandwidth(results, case, aim.row)
            else:
                found = results.ratio(case, aim.row, aim.peer, aim.figure)
            if found is not None:
                yield aim, case, found
