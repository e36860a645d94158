"""Manifest of the platform `static_shapes`."""

from typing import Annotated

import msgspec

from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Which sizes are compiled."""

    buckets: Annotated[tuple[int, ...], msgspec.Meta(description="Rows of a program, rising.")] = (1, 8, 64, 256)
    log: Annotated[str, msgspec.Meta(description="File for a list of compiled programs; empty: none.")] = ""

    def __post_init__(self):
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1:
            raise ValueError(f"buckets is {list(self.buckets)}, expected rising numbers from 1.")


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(
        name="static_shapes",
        summary="programs of fixed shapes",
        arguments=Arguments,
        capabilities={"dtypes": ["float32"], "activation_dtype": "float32"},
        priority=-100,
    )


@hookimpl
def core_probe():
    """One device."""
    return Probe((Device("static_shapes:0", "fixed shapes", 1 << 30),))


@hookimpl
def core_propose(view):
    """A step never exceeds the largest program."""
    given = view.arguments.get("platform_config") or {}
    largest = max(given.get("buckets") or Arguments().buckets)
    why = f"the largest program has {largest} rows"
    return {
        "dtype": Proposal("float32", "the only one that is compiled"),
        "block_size": Proposal(16, "little waste"),
        "max_num_batched_tokens": Proposal(largest, why),
        "max_num_seqs": Proposal(min(64, largest), why),
        "kv_cache_memory_bytes": Proposal(8 << 20, "a small device"),
        "attention_backend": Proposal(["torch_sdpa"], "the only one tried here"),
    }


@hookimpl
def core_load(context):
    """Build the platform."""
    from core_static_shapes.platform import StaticPlatform

    arguments = context.arguments or Arguments()
    return StaticPlatform(arguments.buckets, arguments.log)
