"""What --performance-mode sizes: values that the user gave stay."""

from pathlib import Path
from typing import Any

from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve


def test_a_mode_sizes_batches(tiny_llama: Path, registry: PluginRegistry) -> None:
    def of(mode: str, context: Any, **given: Any) -> dict[str, Any]:
        arguments = {"model": str(tiny_llama), "performance_mode": mode, **given}
        done = resolve(arguments, context=context, registry=registry, environ={})
        names = ("max_num_seqs", "max_num_batched_tokens", "max_num_mixed_batched_tokens", "queued_prompts_weight")
        return {name: done.arguments[name][0] for name in names}

    server, library = of("balanced", "serve"), of("balanced", "llm")
    assert server["max_num_seqs"] < library["max_num_seqs"]
    assert of("throughput", "serve") == library
    assert of("interactivity", "llm") == {**server, "queued_prompts_weight": 0.0}
    assert of("throughput", "serve", max_num_seqs=3)["max_num_seqs"] == 3
