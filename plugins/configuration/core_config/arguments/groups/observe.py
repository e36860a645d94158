"""Arguments about the observability of a server: metrics, traces, logs, profiles.

Owns: declarations only. Called by: schema.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class ProfilerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --profiler-config."""

    profiler: Annotated[
        str | None,
        Arg(
            "Which profiler POST /start_profile starts; none: there is no such path. torch: its own, in this process. cuda: a "
            "program around this process, such as `nsys profile -c cudaProfilerApi`.",
            choices=("torch", "cuda"),
        ),
    ] = None
    torch_profiler_dir: Annotated[str, Arg("Directory of the traces; it is made when it is not there.")] = ""
    torch_profiler_with_stack: Annotated[bool, Arg("Record Python's stacks.")] = True
    torch_profiler_with_flops: Annotated[bool, Arg("Estimate the arithmetic of operations.")] = False
    torch_profiler_use_gzip: Annotated[bool, Arg("Compress the traces.")] = True
    torch_profiler_record_shapes: Annotated[bool, Arg("Record the shapes of operands.")] = False
    delay_iterations: Annotated[int, Arg("Steps after POST /start_profile that are not recorded.", ge=0)] = 0
    max_iterations: Annotated[int, Arg("Steps that are recorded; 0: until POST /stop_profile.", ge=0)] = 0
    wait_iterations: Annotated[int, Arg("Further steps that are not recorded.", ge=0)] = 0
    warmup_iterations: Annotated[int, Arg("Further steps that are not recorded.", ge=0)] = 0
    active_iterations: Annotated[
        int,
        Arg("Steps that are recorded with wait_iterations or warmup_iterations, which are without effect else.", ge=1),
    ] = 5
    torch_profiler_with_memory: Annotated[bool, Arg("Record allocations.")] = False
    torch_profiler_dump_cuda_time_total: Annotated[
        bool,
        Arg(
            "Write tables beside the trace: times by operation and, with --enable-layerwise-nvtx-tracing, by block of "
            "the model."
        ),
    ] = True


class ObserveArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Metrics, traces, profiles."""

    place: ClassVar[int] = 130

    vllm_metrics: Annotated[
        bool, Arg("Write every metric a second time under vLLM's own name, `vllm:...` beside `core:...`.")
    ] = False
    show_hidden_metrics_for_version: Annotated[
        str | None,
        Arg(
            "With --vllm-metrics: write also the names that vLLM has hidden since this version of it, such as 0.10. Of our own "
            "metrics none is hidden.",
            since="0.2.0",
        ),
    ] = None
    enable_mfu_metrics: Annotated[
        bool,
        Arg(
            "Estimate the operations of the steps, and the bytes that they read and write, from the model's shapes, as "
            "metrics. A model on transformers' modules has none.",
            since="0.2.0",
        ),
    ] = False
    cudagraph_metrics: Annotated[
        bool,
        Arg(
            "Count recorded steps as metrics: how often a recording was made, replayed, or could not be used, and the rows "
            "that steps were padded with.",
            since="0.2.0",
        ),
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None,
        Arg(
            "Where spans of requests are sent with OTLP: over gRPC (http://localhost:4317), or over HTTP where it ends with "
            "/v1/traces (http://localhost:4318/v1/traces). Needs core-engine-observers[otel]."
        ),
    ] = None
    collect_detailed_traces: Annotated[
        list[str] | None,
        Arg(
            "Spans inside of those of requests: the wait for the batch, the prompt, the answer. All three words mean the same.",
            choices=("model", "worker", "all"),
            commas=True,
        ),
    ] = None
    custom_histogram_buckets: Annotated[
        dict[str, Any] | None,
        Arg(
            "Upper bounds of the buckets of histograms in /metrics, by what they measure: time_to_first_token, "
            "inter_token_latency and request_latency in seconds, request_tokens, request_params_n. Unset: the usual bounds.",
            since="0.2.0",
        ),
    ] = None
    log_error_stack: Annotated[
        bool, Arg("Log each refused request with the place in the code that refused it, as a traceback.", since="0.2.0")
    ] = False
    log_level: Annotated[
        str | None,
        Arg(
            "Lowest level of lines in the log, of all our processes; CORE_LOG_LEVEL in the environment means the same. "
            "Not given: info. --uvicorn-log-level is that of the HTTP server's own lines.",
            choices=("debug", "info", "warning", "error", "critical", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        ),
    ] = None
    fail_on_environ_validation: Annotated[
        bool,
        Arg(
            "Refuse to start while the environment has a variable that looks like a setting and is not read (CORE_..., "
            "VLLM_...). Otherwise each is a warning, with what to use instead."
        ),
    ] = False
    log_config_file: Annotated[
        str | None,
        Arg(
            "YAML or JSON file for Python's logging.config.dictConfig; all our processes follow it. Loggers: core, "
            "core_apis and the other packages of core, uvicorn.error, uvicorn.access."
        ),
    ] = None
    enable_logging_iteration_details: Annotated[
        bool, Arg("Log a line for each step: its prompts, its decodes, their tokens, and how long it took.")
    ] = False
    audit_share: Annotated[
        float,
        Arg(
            "Share of the engine's steps of which one row, chosen at random, is computed again alone and compared to the bit. "
            "A step with a difference is discarded and computed again.",
            ge=0,
            le=1,
            since="0.2.0",
        ),
    ] = 0.0
    audit_budget: Annotated[
        float, Arg("Most percent of the engine's step time that --audit-share may take.", gt=0, le=100, since="0.2.0")
    ] = 1.0
    audit_dump: Annotated[
        str | None,
        Arg(
            "Directory that gets both sides of what an audit finds. Unset: they are not kept.",
            metavar="DIR",
            since="0.2.0",
        ),
    ] = None
    audit_dump_ids: Annotated[bool, Arg("Whether token ids are among what --audit-dump keeps.", since="0.2.0")] = False
    crash_dump: Annotated[
        str | None,
        Arg(
            "Directory in which an engine keeps a file about the steps that it computes: shapes and lengths, never ids or "
            "texts. It stays where an engine dies of a step. Unset: there is none.",
            metavar="DIR",
            since="0.2.0",
        ),
    ] = None
    max_callback_ms: Annotated[
        float | None,
        Arg(
            "Measure each callback of the API processes' event loops: one that takes more milliseconds of processor time is "
            "logged with its name and counted in /metrics. It is for finding what makes clients wait for each other, and "
            "makes the server some percent slower. Not given: nothing is measured.",
            gt=0,
        ),
    ] = None
    enable_layerwise_nvtx_tracing: Annotated[
        bool,
        Arg(
            "Name each block of the model in profiles, for torch's profiler and, on CUDA, as NVTX ranges. Steps are not "
            "recorded then, since a recording has no ranges.",
            since="0.2.0",
        ),
    ] = False
    profiler_config: Annotated[
        dict[str, Any] | None, Arg("The profiler of the engine, which is off unless it is named.", keys=ProfilerKeys)
    ] = None
