"""Arguments about the recording of steps and about compilation. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar, Final

import msgspec

from core.args.arg import Arg, ArgumentGroup

MOST_ROWS: Final = 1 << 16
"""Largest number of rows for which a step may be recorded."""


class CompilationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --compilation-config."""

    mode: Annotated[
        int | None,
        Arg(
            "0: nothing is compiled. 3: what no provider of kernels serves is compiled, as with --optimization-level 3. 1 and "
            "2 mean 3, with a warning: whole models are never compiled.",
            words=(("none", 0), ("stock_torch_compile", 1), ("dynamo_trace_once", 2), ("vllm_compile", 3)),
            ge=0,
            le=3,
        ),
    ] = None
    level: Annotated[int | None, Arg("Older name of mode.", ge=0, le=3)] = None
    backend: Annotated[
        str | None, Arg("What compiles: inductor; eager: nothing is compiled.", choices=("", "inductor", "eager"))
    ] = None
    cache_dir: Annotated[
        str, Arg("Directory in which torch keeps what it has compiled, also for the next start. Unset: torch's own.")
    ] = ""
    debug_dump_path: Annotated[
        str | None,
        Arg("Directory in which torch writes what it makes of each operation that it compiles. Unset: nothing."),
    ] = None
    cudagraph_mode: Annotated[
        str | None,
        Arg(
            "FULL, as without it: steps are recorded whole, with prompts or without. FULL_DECODE_ONLY: those in which every "
            "sequence computes one token, or has its drafts verified. NONE: nothing is recorded, as with --enforce-eager. "
            "PIECEWISE and FULL_AND_PIECEWISE are refused: no step is recorded in pieces.",
            words=tuple((name.lower(), name) for name in ("NONE", "FULL", "FULL_DECODE_ONLY")),
        ),
    ] = None
    use_cudagraph: Annotated[bool | None, Arg("Older: false is cudagraph_mode NONE.")] = None
    cudagraph_capture_sizes: Annotated[
        list[int] | None, Arg("See --cudagraph-capture-sizes.", commas=True, ge=1, le=MOST_ROWS)
    ] = None
    cudagraph_specialize_lora: Annotated[
        bool | None, Arg("No effect: steps with adapters are always recorded apart from those without.")
    ] = None
    max_cudagraph_capture_size: Annotated[int | None, Arg("See --max-cudagraph-capture-size.", ge=0, le=MOST_ROWS)] = (
        None
    )


class CompilationArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Recordings and compilation."""

    place: ClassVar[int] = 80

    optimization_level: Annotated[
        int | None,
        Arg(
            "0: nothing is recorded or compiled (--enforce-eager). 1: steps are recorded in sizes that are powers of two, "
            "which takes little memory and pads more. 2, as without it: in all sizes that the device has use for. 3: also, "
            "torch compiles in the background what no provider of kernels serves (--kernels auto,inductor); it is used where "
            "it gives the same bits.",
            short=("O",),
            ge=0,
            le=3,
        ),
    ] = None
    performance_mode: Annotated[
        str,
        Arg(
            "What batches are sized for, where their own arguments do not say it. throughput: many requests at once, as with "
            "LLM. interactivity: short waits, as with a server, also while prompts queue up. balanced: as suits the command.",
            choices=("balanced", "interactivity", "throughput"),
        ),
    ] = "balanced"
    compilation_config: Annotated[
        dict[str, Any] | None,
        Arg("The same in single keys, with the names that vLLM has for them.", short=("cc",), keys=CompilationKeys),
    ] = None
    cudagraph_capture_sizes: Annotated[
        list[int] | None,
        Arg(
            "Numbers of rows (tokens) for which a step is recorded, where a recording serves one number; others are padded to "
            "the next one. Steps that verify drafts take them as numbers of sequences. Unset: 1, 2, 4, 8, 16, 24, ...",
            commas=True,
            ge=1,
            le=MOST_ROWS,
        ),
    ] = None
    max_cudagraph_capture_size: Annotated[
        int | None,
        Arg(
            "The largest number of rows (tokens) for which a step is recorded; larger steps are computed call by call. Unset: "
            "1024 on GPUs.",
            ge=0,
            le=MOST_ROWS,
        ),
    ] = None
