"""Rules about memory: the KV cache, its type, offloading of its blocks.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.args.schema import flag_of
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn
from core_config.stages.kv_transfer import named_connectors
from core_config.stages.memory import human_bytes
from core_runtime.models.tensors.kv_scales import is_kv_scale

GIB = 1 << 30
UTILIZATION_MOST = 0.98


def utilization_leaves_room(facts: Facts) -> Findings:
    """A share of nearly all memory leaves no room for allocations that are not planned."""
    share = facts["gpu_memory_utilization"]
    if facts.given("gpu_memory_utilization") and share > UTILIZATION_MOST:
        yield Warn(f"--gpu-memory-utilization {share:g}: above {UTILIZATION_MOST} memory may run out; choose less.")


def weights_fit_the_device(facts: Facts) -> Findings:
    """Weights that are larger than the device's memory are refused before they are read."""
    device = facts.device
    if device is None:
        return
    total = device.total_bytes or device.memory_bytes
    if 0 < total < facts.weights_bytes:
        yield Problem(
            f"{facts['model']}: its weights need {human_bytes(facts.weights_bytes)} of memory, and the device has "
            f"{human_bytes(total)}. Choose a smaller model, or fewer bits a weight (--quantization, a smaller GGUF type)."
        )


def blocks_override_bytes(facts: Facts) -> Findings:
    """A number of blocks overrides bytes and a fraction."""
    count = facts["num_gpu_blocks_override"]
    if count is None:
        return
    yield Derive("kv_cache_memory_bytes", count * facts.block_bytes, f"{count} blocks by num_gpu_blocks_override", True)
    for name in ("kv_cache_memory_bytes", "gpu_memory_utilization"):
        if facts.given(name):
            yield Warn(f"{flag_of(name)} has no effect together with --num-gpu-blocks-override {count}.")


def bytes_override_a_share(facts: Facts) -> Findings:
    """An explicit byte count overrides a fraction."""
    if facts["num_gpu_blocks_override"] is not None or not facts.given("kv_cache_memory_bytes"):
        return
    if facts.given("gpu_memory_utilization"):
        yield Warn(
            f"--gpu-memory-utilization {facts['gpu_memory_utilization']:g} has no effect together with "
            f"--kv-cache-memory-bytes {facts['kv_cache_memory_bytes']}; leave one of them out."
        )


def bytes_come_from_a_share(facts: Facts) -> Findings:
    """A fraction that the user gave overrides the platform's proposal, and applies without one."""
    if facts["num_gpu_blocks_override"] is not None or facts.given("kv_cache_memory_bytes") or facts.device is None:
        return
    if not facts.given("gpu_memory_utilization") and facts["kv_cache_memory_bytes"] is not None:
        return
    share, total = facts["gpu_memory_utilization"], facts.device.total_bytes or facts.device.memory_bytes
    beside, what = _unavailable_bytes(facts)
    room = min(int(total * share), facts.device.memory_bytes) - beside
    why = f"{share:g} of {human_bytes(total)}, less {what}"
    if int(total * share) > facts.device.memory_bytes:
        why = f"{human_bytes(facts.device.memory_bytes)} are free, less {what}"
    yield Derive("kv_cache_memory_bytes", max(room, 0), why)


def _unavailable_bytes(facts: Facts) -> tuple[int, str]:
    """Return the bytes of the device that are not available to the KV cache, and words for them.

    On a device that allocates physical memory at once (`reserved_bytes`), a step's buffers count too, and the
    platform's own needs.
    """
    models = facts.weights_bytes + facts.adapters_bytes
    what = f"{human_bytes(facts.weights_bytes)} of weights"
    if facts.adapters_bytes:
        what += f", {human_bytes(facts.adapters_bytes)} of adapters"
    reserved = facts.capability("reserved_bytes")
    if reserved is None:
        if facts.tower_bytes:  # The device's memory is the host's.
            what += f", {human_bytes(facts.tower_bytes)} of the tower"
        return models + facts.tower_bytes, what
    workspace = facts.workspace_bytes
    what += f", {human_bytes(workspace)} of buffers and {human_bytes(reserved)} for the driver and recorded graphs"
    return models + workspace + reserved, what


def kv_dtype_needs_scales(facts: Facts) -> Findings:
    """An 8-bit cache uses scales of 1.0 when the checkpoint has none."""
    dtype = facts["kv_cache_dtype"]
    if str(dtype) not in ("fp8_e4m3", "fp8_e5m2") or facts.manifest is None:
        return
    if not any(is_kv_scale(name) for name in facts.manifest.tensors):
        yield Warn(
            f"--kv-cache-dtype {dtype}: the checkpoint has no scales, so 1.0 is used and accuracy may suffer; "
            "choose --kv-cache-dtype auto to be safe."
        )


def fp8_means_e4m3(facts: Facts) -> Findings:
    """`fp8` is a spelling of `fp8_e4m3`."""
    if facts["kv_cache_dtype"] == "fp8":
        yield Derive("kv_cache_dtype", "fp8_e4m3", "fp8 means fp8_e4m3", canonical=True)


def int4_means_k8v4(facts: Facts) -> Findings:
    """`int4` is a spelling of `k8v4_per_token_head`: values of 4 bits, and keys of 8, since 4-bit keys cost much accuracy."""
    if facts["kv_cache_dtype"] == "int4":
        reason = "int4 means values of 4 bits with keys of 8: keys of 4 bits raise perplexity by 4% and more"
        yield Derive("kv_cache_dtype", "k8v4_per_token_head", reason, canonical=True)


def kv_dtype_fits_the_platform(facts: Facts) -> Findings:
    """A platform that declares `kv_dtypes` serves only these."""
    allowed, dtype = facts.capability("kv_dtypes"), facts["kv_cache_dtype"]
    if allowed is not None and dtype != "auto" and dtype not in allowed:
        name = facts.platform.name if facts.platform else ""
        yield Problem(f"--kv-cache-dtype {dtype}: platform '{name}' serves {', '.join(allowed)}; choose one of these.")


def skipped_layers_need_another_type(facts: Facts) -> Findings:
    """Layers keep the model's precision where the cache has another."""
    if facts["kv_cache_dtype_skip_layers"] and facts["kv_cache_dtype"] == facts["dtype"]:
        yield Warn(
            f"--kv-cache-dtype-skip-layers has no effect, as all layers store {facts['dtype']}; "
            "choose another --kv-cache-dtype."
        )


def named_connectors_settle_offloading(facts: Facts) -> Findings:
    """vLLM's connectors to host memory and disk are arguments of this engine."""
    named = named_connectors(facts.settings)
    yield from map(Problem, named.problems)
    for name, (value, written) in named.settled.items():
        if facts.given(name) and facts[name] != value:
            yield Problem(f"{written}: {flag_of(name)} {facts[name]} says otherwise; leave one out.")
        yield Derive(name, value, written)


def host_memory_holds_offloaded_blocks(facts: Facts) -> Findings:
    """Offloaded blocks need room in the host's memory."""
    size = facts["kv_offloading_size"] or 0
    if facts.host_memory and size * GIB > facts.host_memory:
        yield Warn(
            f"--kv-offloading-size {size:g}: this machine has {human_bytes(facts.host_memory)} of memory; "
            "choose a smaller size."
        )


def disk_size_needs_a_path(facts: Facts) -> Findings:
    """The size of the disk tier has an effect only with its directory."""
    if facts.given("kv_offloading_disk_size") and facts["kv_offloading_disk_path"] is None:
        yield Warn("--kv-offloading-disk-size has no effect without --kv-offloading-disk-path.")


def offloading_needs_prefix_caching(facts: Facts) -> Findings:
    """Offloading, events and metrics of the KV cache need prefix caching."""
    if facts["enable_prefix_caching"] is not False:
        return
    names = (
        "kv_offloading_size",
        "kv_offloading_disk_path",
        "keep_kv",
        "kv_connectors",
        "kv_transfer_config",
        "kv_events_config",
        "kv_cache_metrics",
    )
    for name in names:
        if facts[name]:
            yield Warn(f"{flag_of(name)} has no effect without prefix caching.")
    for name in ("kv_eviction", "kv_share_per_key"):
        if facts.given(name):
            yield Warn(f"{flag_of(name)} has no effect without prefix caching.")


RULES: tuple[Rule, ...] = (
    Rule(utilization_leaves_room),
    Rule(weights_fit_the_device, "memory"),
    Rule(blocks_override_bytes, "memory"),
    Rule(bytes_override_a_share, "memory"),
    Rule(bytes_come_from_a_share, "memory"),
    Rule(fp8_means_e4m3),
    Rule(int4_means_k8v4),
    Rule(kv_dtype_fits_the_platform, "platform"),
    Rule(kv_dtype_needs_scales, "model"),
    Rule(skipped_layers_need_another_type, "model"),
    Rule(named_connectors_settle_offloading),
    Rule(host_memory_holds_offloaded_blocks, "platform"),
    Rule(disk_size_needs_a_path),
    Rule(offloading_needs_prefix_caching, "model"),
)
