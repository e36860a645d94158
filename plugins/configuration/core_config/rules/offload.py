"""Rules about weights in host memory.

Owns: those rules and their order, and what the arguments mean together. Called by: the table (`core_config.rules`), the stage
of sizes.
"""

from __future__ import annotations

from typing import Final

from core.args.schema import flag_of
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn
from core_config.stages.memory import human_bytes
from core_config.stages.settings import Settings
from core_runtime.specs.module_spec import ModuleSpec

PREFETCH: Final = "prefetch"
UVA: Final = "uva"
OF_BACKEND: Final = {
    PREFETCH: ("offload_group_size", "offload_num_in_group", "offload_prefetch_step", "offload_params"),
    UVA: ("cpu_offload_gb", "cpu_offload_params"),
}
"""Arguments that only one backend reads; the first one switches it on."""


def backend_of(settings: Settings) -> str:
    """Return `prefetch` or `uva`; empty where all weights lie on the device."""
    named = settings["offload_backend"]
    for backend, (switch, *_) in OF_BACKEND.items():
        if settings[switch] and named in ("auto", backend):
            return backend
    return ""


def offloaded_weights_have_one_backend(facts: Facts) -> Findings:
    """Weights in host memory are copied ahead or read in place, by the arguments of one backend."""
    backend = facts["offload_backend"]
    on = [name for name, (switch, *_) in OF_BACKEND.items() if facts[switch]]
    flags = {name: flag_of(switch) for name, (switch, *_) in OF_BACKEND.items()}
    if len(on) > 1:
        yield Problem(
            f"{flags[UVA]} {facts['cpu_offload_gb']:g} reads weights in place, and {flags[PREFETCH]} "
            f"{facts['offload_group_size']} copies them ahead; leave one of them out."
        )
    elif backend != "auto" and on != [backend]:
        instead = f", not {flags[on[0]]}" if on else ""
        yield Problem(
            f"--offload-backend {backend}: give {flags[backend]}{instead}, to say how much lies in host memory."
        )
    for name, (_, *others) in OF_BACKEND.items():
        for other in others:
            if name not in on and facts.given(other):
                yield Warn(f"{flag_of(other)} has no effect without {flags[name]}.")


def offloaded_blocks_are_in_a_group(facts: Facts) -> Findings:
    """A group has as many blocks as lie in host memory of it, or more."""
    size, kept = facts["offload_group_size"], facts["offload_num_in_group"]
    if 0 < size < kept:
        yield Problem(f"--offload-num-in-group {kept}: a group has {size} blocks (--offload-group-size); choose fewer.")


def offloading_needs_a_device(facts: Facts) -> Findings:
    """Weights in host memory need a device with memory of its own that comes to them; a processor computes in host memory."""
    backend = backend_of(facts.settings)
    if not backend:
        return
    able = facts.capability("offload_backends")
    switch = OF_BACKEND[backend][0]
    if able is None:
        device = "" if facts.device is None else facts.device.name
        yield Warn(
            f"{flag_of(switch)} {facts[switch]:g} has no effect on {device}, which computes in the host's memory."
        )
        yield Derive(switch, 0, f"{device} computes in the host's memory", force=True)
    elif backend not in able:
        name = facts.platform.name if facts.platform else ""
        yield Problem(f"--offload-backend {backend}: {name} serves {', '.join(able)}; choose one of these.")
    elif facts["tensor_parallel_size"] * facts["pipeline_parallel_size"] > 1:
        yield Problem(
            f"{flag_of(switch)} {facts[switch]:g}: ranks that divide a model hold their weights on their devices; leave it out."
        )


def offloaded_layers_are_ours(facts: Facts) -> Findings:
    """Layers of transformers read their weights on the device."""
    backend = backend_of(facts.settings)
    if backend and isinstance(facts.spec, ModuleSpec):
        switch = OF_BACKEND[backend][0]
        yield Problem(
            f"{flag_of(switch)} {facts[switch]:g}: the layers of transformers read their weights on the device; leave it out."
        )


def host_memory_holds_offloaded_weights(facts: Facts) -> Findings:
    """Offloaded weights fit into the host's memory, which is known before one is read."""
    if facts.offloaded_bytes and facts.host_memory and facts.offloaded_bytes > facts.host_memory:
        switch = OF_BACKEND[backend_of(facts.settings)][0]
        yield Problem(
            f"{flag_of(switch)} {facts[switch]:g}: {human_bytes(facts.offloaded_bytes)} of weights belong into host memory, "
            f"and this machine has {human_bytes(facts.host_memory)}; leave more of them on the device."
        )


RULES: tuple[Rule, ...] = (
    Rule(offloaded_weights_have_one_backend),
    Rule(offloaded_blocks_are_in_a_group),
    Rule(offloading_needs_a_device, "platform"),
    Rule(offloaded_layers_are_ours, "model"),
    Rule(host_memory_holds_offloaded_weights, "memory"),
)
