"""Arguments about compiling and capturing the forward pass. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

COMPILE = "the forward pass is neither compiled nor captured"


class InductorKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --compilation-config.inductor_compile_config."""

    enable_auto_functionalized_v2: Annotated[bool, Arg("Second form of functionalized custom operations.")] = False
    combo_kernels: Annotated[bool, Arg("Join independent kernels.")] = True
    benchmark_combo_kernel: Annotated[bool, Arg("Measure whether joining pays.")] = True


class DynamicShapesKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --compilation-config.dynamic_shapes_config."""

    type: Annotated[str, Arg("How sizes are symbols.", choices=("backed", "unbacked", "backed_size_oblivious"))] = (
        "backed"
    )
    evaluate_guards: Annotated[bool, Arg("Check the assumptions at each call.")] = False
    assume_32_bit_indexing: Annotated[bool, Arg("Indices fit 32 bits.")] = False


class CompilationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --compilation-config."""

    mode: Annotated[
        int | None,
        Arg(
            "0: run eagerly; 1: compile; 2: compile once; 3: compile in pieces.",
            ge=0,
            le=3,
            served=(None, 0),
            unserved=COMPILE,
        ),
    ] = None
    backend: Annotated[str, Arg("Compiler.", served=("inductor", "eager", ""), unserved=COMPILE)] = "inductor"
    custom_ops: Annotated[list[str], Arg("Custom operations to use (+NAME) or not (-NAME).")] = []
    splitting_ops: Annotated[list[str] | None, Arg("Operations at which the graph is cut.")] = None
    compile_mm_encoder: Annotated[bool, Arg("Compile the media encoder too.")] = False
    compile_sizes: Annotated[list[int] | None, Arg("Batch sizes to compile for.", commas=True)] = None
    compile_ranges_endpoints: Annotated[list[int] | None, Arg("Ends of ranges to compile for.", commas=True)] = None
    inductor_compile_config: Annotated[dict[str, Any], Arg("Inductor's settings.", keys=InductorKeys)] = {}
    inductor_passes: Annotated[dict[str, Any], Arg("Additional passes: name to import path.")] = {}
    pass_config: Annotated[dict[str, Any], Arg("Which fusions run.")] = {}
    dynamic_shapes_config: Annotated[dict[str, Any], Arg("Symbolic sizes.", keys=DynamicShapesKeys)] = {}
    debug_dump_path: Annotated[str | None, Arg("Directory for the compiler's notes.")] = None
    cache_dir: Annotated[str, Arg("Directory of compiled code.")] = ""
    local_cache_dir: Annotated[str | None, Arg("Directory of this rank's compiled code.")] = None
    compile_cache_save_format: Annotated[str, Arg("Form of compiled code on disk.", choices=("binary", "unpacked"))] = (
        "binary"
    )
    use_inductor_graph_partition: Annotated[bool | None, Arg("Let inductor cut the graph.")] = None
    ir_enable_torch_wrap: Annotated[bool | None, Arg("Wrap operations as torch's.")] = None
    fast_moe_cold_start: Annotated[bool | None, Arg("Share compiled code between layers of experts.")] = None
    static_all_moe_layers: Annotated[list[str], Arg("Layers of experts, by name.")] = []
    cudagraph_mode: Annotated[
        str | None,
        Arg(
            "What is captured: nothing, the pieces, or the whole.",
            choices=("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
            served=(None, "NONE"),
            unserved=COMPILE,
        ),
    ] = None
    cudagraph_num_of_warmups: Annotated[int, Arg("Runs before a capture.", ge=0)] = 0
    cudagraph_capture_sizes: Annotated[list[int] | None, Arg("Batch sizes to capture.", commas=True)] = None
    max_cudagraph_capture_size: Annotated[int | None, Arg("Largest batch size to capture.", ge=0)] = None
    cudagraph_copy_inputs: Annotated[bool, Arg("Copy inputs before a replay.")] = False
    cudagraph_specialize_lora: Annotated[bool, Arg("Capture with and without adapters.")] = True
    cudagraph_mm_encoder: Annotated[bool, Arg("Capture the media encoder too.")] = False
    encoder_cudagraph_token_budgets: Annotated[list[int], Arg("Encoder's sizes to capture.", commas=True)] = []
    encoder_cudagraph_max_images_per_batch: Annotated[int, Arg("Images in one captured batch.", ge=0)] = 0


class CompilationArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Graph capture."""

    cudagraph_capture_sizes: Annotated[
        list[int] | None,
        Arg("Exactly these batch sizes are captured. Unset: derived.", commas=True, unserved=COMPILE),
    ] = None
    max_cudagraph_capture_size: Annotated[
        int | None,
        Arg(
            "Largest batch size that is captured. Unset: the smaller of twice --max-num-seqs and 512.",
            ge=0,
            unserved=COMPILE,
        ),
    ] = None
    compilation_config: Annotated[
        dict[str, Any],
        Arg(
            "How the forward pass is compiled and captured; a number alone is the mode.",
            short=("cc",),
            keys=CompilationKeys,
            unserved=COMPILE,
        ),
    ] = {}
