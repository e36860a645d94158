"""Arguments about what the engine reports. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg

_TRACES = "traces are not exported"
_METRIC = "it is not measured"


class ObservabilityArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics and traces."""

    otlp_traces_endpoint: Annotated[str | None, Arg("Where OpenTelemetry traces are sent.", unserved=_TRACES)] = None
    collect_detailed_traces: Annotated[
        list[str] | None,
        Arg("Parts that are traced in detail.", choices=("model", "worker", "all"), commas=True, unserved=_TRACES),
    ] = None
    show_hidden_metrics_for_version: Annotated[
        str | None, Arg("Show metrics hidden since this version.", unserved="no metric is hidden")
    ] = None
    kv_cache_metrics: Annotated[bool, Arg("Measure how long KV blocks stay cached, idle and wait for reuse.")] = False
    kv_cache_metrics_sample: Annotated[float, Arg("Share of blocks that are measured.", gt=0, le=1)] = 0.01
    cudagraph_metrics: Annotated[bool, Arg("Report padding and modes of captured passes.", unserved=_METRIC)] = False
    enable_mfu_metrics: Annotated[
        bool, Arg("Report how much of the device's arithmetic is used.", unserved=_METRIC)
    ] = False
    enable_logging_iteration_details: Annotated[
        bool, Arg("Log requests, tokens and time of each step.", unserved="steps are not logged one by one")
    ] = False
    enable_layerwise_nvtx_tracing: Annotated[
        bool, Arg("Mark each layer and its shapes for a profiler.", unserved="layers are not marked")
    ] = False
