"""Arguments that span the parts of one instance: presets, profiler, transfers.

Owns: declarations only. Called by: schema.
"""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg
from core.args.compilation import COMPILE

_ALONE = "an instance does not exchange anything with others"
_PROFILER = "there is no profiler"


class ProfilerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --profiler-config."""

    profiler: Annotated[str | None, Arg("Which profiler.", choices=("torch", "cuda"))] = None
    torch_profiler_dir: Annotated[str, Arg("Directory of the traces.")] = ""
    torch_profiler_with_stack: Annotated[bool, Arg("Record stacks.")] = True
    torch_profiler_with_flops: Annotated[bool, Arg("Count operations.")] = False
    torch_profiler_use_gzip: Annotated[bool, Arg("Compress the traces.")] = True
    torch_profiler_dump_cuda_time_total: Annotated[bool, Arg("Write a table of times on the device.")] = True
    torch_profiler_record_shapes: Annotated[bool, Arg("Record shapes.")] = False
    torch_profiler_with_memory: Annotated[bool, Arg("Record memory.")] = False
    ignore_frontend: Annotated[bool, Arg("Leave the server's process out.")] = False
    delay_iterations: Annotated[int, Arg("Steps before it begins.", ge=0)] = 0
    max_iterations: Annotated[int, Arg("Steps until it ends; 0: when it is told to.", ge=0)] = 0
    warmup_iterations: Annotated[int, Arg("Steps that it runs without recording.", ge=0)] = 0
    active_iterations: Annotated[int, Arg("Steps that it records in a row.", ge=1)] = 5
    wait_iterations: Annotated[int, Arg("Steps that it skips in between.", ge=0)] = 0


class KVEventsKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-events-config."""

    enable_kv_cache_events: Annotated[bool, Arg("Tell of stored, removed and cleared blocks.")] = False
    publisher: Annotated[str, Arg("Who tells.", choices=("zmq", "null"))] = "zmq"
    endpoint: Annotated[str, Arg("ZMQ address that subscribers connect to.")] = "tcp://127.0.0.1:5557"
    replay_endpoint: Annotated[str | None, Arg("ZMQ address that answers with past batches. Unset: none.")] = None
    buffer_steps: Annotated[int, Arg("Batches kept for that.", ge=1)] = 10_000
    hwm: Annotated[int, Arg("Messages kept for a slow subscriber; more are dropped.", ge=1)] = 100_000
    max_queue_size: Annotated[int, Arg("Batches that may wait for the publisher; more are dropped.", ge=1)] = 100_000
    topic: Annotated[str, Arg("First frame of every message.")] = ""


class InstanceArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Whole instance."""

    optimization_level: Annotated[
        int,
        Arg(
            "Preset between a quick start (0: compile nothing) and speed (3).",
            short=("O",),
            choices=(0, 1, 2, 3),
            served=(0, 2),
            unserved=f"{COMPILE} (the mode of compilation, which -O meant in older versions, is -cc.mode)",
        ),
    ] = 2
    performance_mode: Annotated[
        str,
        Arg(
            "Preset for the latency of one request or the throughput of all.",
            choices=("balanced", "interactivity", "throughput"),
            unserved="there are no presets; set --max-num-seqs and --max-num-batched-tokens themselves",
        ),
    ] = "balanced"
    profiler_config: Annotated[
        dict[str, Any], Arg("What a profiler records.", keys=ProfilerKeys, unserved=_PROFILER)
    ] = {}
    kv_transfer_config: Annotated[
        dict[str, Any] | None, Arg("Hand KV blocks to other instances: connector, role, peers.", unserved=_ALONE)
    ] = None
    kv_events_config: Annotated[
        dict[str, Any] | None, Arg("Tell others over ZMQ which blocks are cached.", keys=KVEventsKeys)
    ] = None
    ec_transfer_config: Annotated[
        dict[str, Any] | None, Arg("Hand the media encoder's outputs to other instances.", unserved=_ALONE)
    ] = None
    weight_transfer_config: Annotated[
        dict[str, Any] | None, Arg("Take new weights from a training process.", unserved=_ALONE)
    ] = None
    additional_config: Annotated[
        dict[str, Any],
        Arg("Free settings for a platform.", unserved="a platform's settings are --platform-config"),
    ] = {}
