"""Options of benchmarks without a server, under vLLM's names.

Owns: declarations only. Called by: `core bench latency`, `throughput` and `startup`.
"""

from typing import Annotated

import msgspec

from core.args.arg import Arg


class OfflineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of measurements without a server."""

    output_json: Annotated[str | None, Arg("File for the result.", metavar="FILE")] = None
    json: Annotated[bool, Arg("Print the result as JSON.")] = False


class LatencyOptions(OfflineOptions, frozen=True, kw_only=True):
    """Options of bench latency."""

    input_len: Annotated[int, Arg("Tokens of each prompt.", ge=1, le=1 << 24)] = 32
    output_len: Annotated[int, Arg("Tokens of each answer.", ge=1, le=1 << 24)] = 128
    batch_size: Annotated[int, Arg("Prompts of a batch.", ge=1, le=1 << 20)] = 8
    n: Annotated[int, Arg("Answers to each prompt.", ge=1)] = 1
    num_iters_warmup: Annotated[int, Arg("Batches before the measurement.", ge=0)] = 10
    num_iters: Annotated[int, Arg("Batches that are measured.", ge=1)] = 30
    disable_detokenize: Annotated[bool, Arg("Do not make texts of the tokens.")] = False


class ThroughputOptions(OfflineOptions, frozen=True, kw_only=True):
    """Options of bench throughput, beside those about prompts."""

    n: Annotated[int, Arg("Answers to each prompt.", ge=1)] = 1
    disable_detokenize: Annotated[bool, Arg("Do not make texts of the tokens.")] = False


class StartupOptions(OfflineOptions, frozen=True, kw_only=True):
    """Options of bench startup."""

    num_iters: Annotated[int, Arg("Starts that are measured, after a first one that is told apart.", ge=1)] = 3
