"""Rules about memory: the KV cache, its type, offloading.

Owns: those rules and their rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

from core.config.memory import human_bytes
from core.config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn

GIB = 1 << 30
UTILIZATION_MOST = 0.98


def r4_utilization(facts: Facts) -> Findings:
    """Nearly all of the memory leaves nothing for what is not planned."""
    share = facts["gpu_memory_utilization"]
    if facts.given("gpu_memory_utilization") and share > UTILIZATION_MOST:
        yield Warn(f"--gpu-memory-utilization {share:g}: above {UTILIZATION_MOST} memory may run out; choose less.")


def r4_range(facts: Facts) -> Findings:
    """A share is above 0 and at most 1."""
    share = facts["gpu_memory_utilization"]
    if not 0 < share <= 1:
        yield Problem(f"--gpu-memory-utilization {share}: expected a number above 0 and at most 1, such as 0.9.")


def r31_blocks(facts: Facts) -> Findings:
    """A number of blocks says all."""
    count = facts["num_gpu_blocks_override"]
    if count is None:
        return
    yield Derive("kv_cache_memory_bytes", count * facts.block_bytes, f"{count} blocks by num_gpu_blocks_override", True)
    for name in ("kv_cache_memory_bytes", "gpu_memory_utilization"):
        if facts.given(name):
            yield Warn(f"--{name.replace('_', '-')} has no effect beside --num-gpu-blocks-override {count}.")


def n31_bytes(facts: Facts) -> Findings:
    """Bytes go before a share."""
    if facts["num_gpu_blocks_override"] is not None or not facts.given("kv_cache_memory_bytes"):
        return
    if facts.given("gpu_memory_utilization"):
        yield Warn(
            f"--gpu-memory-utilization {facts['gpu_memory_utilization']:g} has no effect beside "
            f"--kv-cache-memory-bytes {facts['kv_cache_memory_bytes']}; leave one of them out."
        )


def n31_share(facts: Facts) -> Findings:
    """A share that the user gave goes before the platform's proposal, and is all there is without one."""
    if facts["num_gpu_blocks_override"] is not None or facts.given("kv_cache_memory_bytes") or facts.device is None:
        return
    if not facts.given("gpu_memory_utilization") and facts["kv_cache_memory_bytes"] is not None:
        return
    share, total = facts["gpu_memory_utilization"], facts.device.total_bytes or facts.device.memory_bytes
    room = min(int(total * share), facts.device.memory_bytes) - facts.weights_bytes
    why = f"{share:g} of {human_bytes(total)}, less {human_bytes(facts.weights_bytes)} of weights"
    if int(total * share) > facts.device.memory_bytes:
        why = f"{human_bytes(facts.device.memory_bytes)} are free, less {human_bytes(facts.weights_bytes)} of weights"
    yield Derive("kv_cache_memory_bytes", max(room, 0), why)


def r3_scales(facts: Facts) -> Findings:
    """An 8-bit cache without scales uses 1.0."""
    dtype = facts["kv_cache_dtype"]
    if str(dtype) not in ("fp8_e4m3", "fp8_e5m2") or facts.manifest is None:
        return
    if not any(name.endswith((".k_scale", ".v_scale", ".kv_scale")) for name in facts.manifest.tensors):
        yield Warn(
            f"--kv-cache-dtype {dtype}: the checkpoint has no scales, so 1.0 is used and accuracy may suffer; "
            "choose --kv-cache-dtype auto to be safe."
        )


def r34_plain_fp8(facts: Facts) -> Findings:
    """`fp8` is a spelling of `fp8_e4m3`."""
    if facts["kv_cache_dtype"] == "fp8":
        yield Derive("kv_cache_dtype", "fp8_e4m3", "fp8 means fp8_e4m3", canonical=True)


def r34_platform(facts: Facts) -> Findings:
    """Platforms that declare `kv_dtypes` serve no others."""
    allowed, dtype = facts.capability("kv_dtypes"), facts["kv_cache_dtype"]
    if allowed is not None and dtype != "auto" and dtype not in allowed:
        name = facts.platform.name if facts.platform else ""
        yield Problem(f"--kv-cache-dtype {dtype}: platform '{name}' serves {', '.join(allowed)}; choose one of these.")


def r39_host(facts: Facts) -> Findings:
    """Offloaded weights, offloaded KV and media caches are separate reservations in one host memory."""
    weights, cache, media = facts["cpu_offload_gb"], facts["kv_offloading_size"] or 0, media_bytes(facts) / GIB
    total = weights + cache + media
    if (weights or cache) and facts.host_memory and total * GIB > facts.host_memory:
        yield Warn(
            f"--cpu-offload-gb {weights:g}, --kv-offloading-size {cache:g} and {media:g} GiB of media caches are "
            f"{total:g} GiB together; this machine has {human_bytes(facts.host_memory)}. Lower one of them."
        )


def media_bytes(facts: Facts) -> float:
    """Host memory of all media caches (N39): one for each API server and each replica; 0 for text models."""
    if not facts.given("mm_processor_cache_gb"):
        return 0.0
    return float(facts["mm_processor_cache_gb"] * GIB * (facts["api_server_count"] + facts["data_parallel_size"]))


def n32_offloading(facts: Facts) -> Findings:
    """A way to offload, and nothing to offload to."""
    if not facts.given("kv_offloading_backend") or facts["kv_offloading_disk_path"] is not None:
        return
    if facts["kv_offloading_size"] is None:
        yield Warn(
            f"--kv-offloading-backend {facts['kv_offloading_backend']} has no effect without --kv-offloading-size "
            "or --kv-offloading-disk-path."
        )


def c6_disk_size(facts: Facts) -> Findings:
    """A size of a directory, and no directory."""
    if facts.given("kv_offloading_disk_size") and facts["kv_offloading_disk_path"] is None:
        yield Warn("--kv-offloading-disk-size has no effect without --kv-offloading-disk-path.")


def c7_prefix_caching(facts: Facts) -> Findings:
    """What lives on cached blocks, and no block is cached."""
    if facts["enable_prefix_caching"] is not False:
        return
    for name in ("kv_offloading_size", "kv_offloading_disk_path", "kv_events_config", "kv_cache_metrics"):
        if facts[name]:
            yield Warn(f"--{name.replace('_', '-')} has no effect without prefix caching.")


def n33_backend(facts: Facts) -> Findings:
    """`auto` follows from what was sized."""
    group, gigabytes = facts["offload_group_size"], facts["cpu_offload_gb"]
    if facts["offload_backend"] == "auto" and group > 0 and gigabytes == 0:
        yield Derive("offload_backend", "prefetch", "offload_group_size is set", force=True)
    elif facts["offload_backend"] == "auto" and gigabytes > 0 and group == 0:
        yield Derive("offload_backend", "uva", "cpu_offload_gb is set", force=True)


def n33_ambiguous(facts: Facts) -> Findings:
    """Two ways at once."""
    group, gigabytes = facts["offload_group_size"], facts["cpu_offload_gb"]
    if facts["offload_backend"] == "auto" and group > 0 and gigabytes > 0:
        yield Problem(
            f"--offload-group-size {group} and --cpu-offload-gb {gigabytes:g}: the first means prefetching, the second "
            "unified addressing; leave one out or name --offload-backend."
        )


def n34_group(facts: Facts) -> Findings:
    """A group has as many layers as it has."""
    part, group = facts["offload_num_in_group"], facts["offload_group_size"]
    if group > 0 and part > group:
        yield Problem(
            f"--offload-num-in-group {part}: more than --offload-group-size {group}; lower the one or raise the other."
        )


def n35_mamba(facts: Facts) -> Findings:
    """State blocks serve prefix caching, in eights."""
    size, mode, caching = facts["mamba_block_size"], facts["mamba_cache_mode"], facts["enable_prefix_caching"]
    if size is not None and caching is False:
        yield Problem(f"--mamba-block-size {size}: needs prefix caching; leave --no-enable-prefix-caching out.")
    if size is not None and size % 8:
        yield Problem(f"--mamba-block-size {size}: expected a multiple of 8, such as {-(-size // 8) * 8}.")
    if caching is False and facts.given("mamba_cache_mode") and mode != "none":
        yield Problem(f"--mamba-cache-mode {mode}: needs prefix caching; choose none.")


def n35_mode(facts: Facts) -> Findings:
    """Without prefix caching nothing is kept."""
    if facts["enable_prefix_caching"] is False:
        yield Derive("mamba_cache_mode", "none", "prefix caching is off")


KV = ("num_gpu_blocks_override", "kv_cache_memory_bytes", "gpu_memory_utilization")
OFFLOADED = ("kv_offloading_size", "kv_offloading_disk_path")
OFFLOAD = ("offload_backend", "offload_group_size", "cpu_offload_gb")
MAMBA = ("mamba_block_size", "mamba_cache_mode", "enable_prefix_caching")
MEDIA = ("mm_processor_cache_gb", "api_server_count", "data_parallel_size")
RULES: tuple[Rule, ...] = (
    Rule("R4", ("gpu_memory_utilization",), "error", r4_range),
    Rule("R4", ("gpu_memory_utilization",), "warning", r4_utilization),
    Rule("R31", KV, "derived", r31_blocks, "memory"),
    Rule("N31", KV, "warning", n31_bytes, "memory"),
    Rule("N31", KV, "derived", n31_share, "memory"),
    Rule("R34", ("kv_cache_dtype",), "derived", r34_plain_fp8),
    Rule("R34", ("kv_cache_dtype",), "error", r34_platform, "platform"),
    Rule("R3", ("kv_cache_dtype",), "warning", r3_scales, "model"),
    Rule("R39", ("cpu_offload_gb", "kv_offloading_size", *MEDIA), "warning", r39_host, "platform"),
    Rule("N32", ("kv_offloading_backend", *OFFLOADED), "warning", n32_offloading),
    Rule("C6", ("kv_offloading_disk_size", "kv_offloading_disk_path"), "warning", c6_disk_size),
    Rule(
        "C7",
        ("enable_prefix_caching", *OFFLOADED, "kv_events_config", "kv_cache_metrics"),
        "warning",
        c7_prefix_caching,
        "model",
    ),
    Rule("N33", OFFLOAD, "error", n33_ambiguous),
    Rule("N33", OFFLOAD, "derived", n33_backend),
    Rule("N34", ("offload_num_in_group", "offload_group_size"), "error", n34_group),
    Rule("N35", MAMBA, "error", n35_mamba),
    Rule("N35", MAMBA, "derived", n35_mode),
)
