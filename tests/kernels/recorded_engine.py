"""An engine on a GPU that is not here: its kernels are written down instead of launched, and its tokens mean nothing.

Called by: the test of the warm-up, as a script: `python -m tests.kernels.recorded_engine MODEL DRAFT`. It prints JSON: the
titles of launches that the warm-up would not have compiled, of each run of steps, and how many launches it had.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.runtime import driver

from core import LLM, SamplingParams
from core.api.config import EngineConfig
from core.plugin.hookspecs import Device, Probe
from core.plugin.registry import PluginRegistry
from core_config import resolve as resolution
from core_kernels.triton.compiling import ahead
from core_kernels.triton.compiling.launches import StandIn, written
from core_kit.devices.fake_device import FakeCalls
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.runtime import DeviceRuntime
from core_runtime.executor import plugin_loading, worker
from core_runtime.executor.dry_run import dry_run
from core_runtime.layers.kernels import KernelSet
from tests.inside import core_of

CHIP = "sm_90"
MODEL, DRAFT = sys.argv[1:]
GREEDY = {"temperature": 0, "ignore_eos": True}
RUNS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "decode": ({}, [{**GREEDY, "max_tokens": 12}] * 5),
    "mixed": ({"max_num_batched_tokens": 24}, [{**GREEDY, "max_tokens": number} for number in (3, 9, 5, 20, 7)]),
    "never recorded": ({"enforce_eager": True}, [{**GREEDY, "max_tokens": 6}] * 3),
    "filters": (
        {},
        [
            {"temperature": 0.8, "top_p": 0.9, "seed": 1, "max_tokens": 6, "ignore_eos": True},
            {"temperature": 0.8, "top_k": 7, "min_p": 0.1, "seed": 2, "max_tokens": 6, "ignore_eos": True},
            *({**GREEDY, "max_tokens": number, "logprobs": number - 1} for number in (3, 4, 6, 7)),
        ],
    ),
    "verify": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        [{**GREEDY, "max_tokens": 20}] * 4,
    ),
    "draft model": (
        {"speculative_config": {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 3}},
        [{**GREEDY, "max_tokens": 20}] * 4,
    ),
}
"""Arguments of an engine, and parameters of its requests."""


class Recording:
    """A graph of nothing."""

    def replay(self) -> None:
        """Do nothing: what was recorded was written down when it was."""


class Calls(FakeCalls):
    """The fake device, in whose memory nothing is ever poisoned, and whose graphs call kernels that are written down."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Allocate zeros."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy at once."""
        target.copy_(source)

    def record(self, run: Any) -> Any:
        """Call what is recorded."""
        run()
        return Recording()


@contextmanager
def on_a_chip() -> Iterator[None]:
    """Let engines believe that the chip is here. Nothing computes, so memory without content would be no tokens."""

    def resolved(arguments: Any, *, context: Any) -> Any:
        registry = PluginRegistry()
        device = Device("cuda:0", "a chip", 1 << 34, profile=CHIP)
        for row in registry.rows("platform"):
            is_ours = row.name == "cuda"
            registry.take_answer(row, Probe((device,)) if is_ours else Probe(unavailable="not asked for"))
        return resolve(arguments, context=context, registry=registry)

    def opened(config: EngineConfig, plugins: Any) -> DeviceRuntime:
        providers = [plugin_loading.load_plugin(config, plugins, "kernels", name) for name in config.plugins.kernels]
        calls = Calls()
        return DeviceRuntime(calls, KernelSet(providers, "cuda"), Graphs(calls, 64 << 20, 16))

    def zeros(*shape: Any, **options: Any) -> torch.Tensor:
        return torch.zeros(*shape, **{name: value for name, value in options.items() if name != "pin_memory"})

    resolve = resolution.resolve
    driver.set_active(StandIn(ahead.target_of(CHIP)))
    patches = [
        mock.patch.object(resolution, "resolve", resolved),
        mock.patch.object(worker, "open_runtime", opened),
        mock.patch.object(worker, "WarmUps", mock.MagicMock()),
        mock.patch.object(torch, "empty", zeros),
        mock.patch.object(torch, "empty_like", torch.zeros_like),
        mock.patch.object(np, "empty", np.zeros),
        mock.patch.object(torch.Tensor, "new_empty", torch.Tensor.new_zeros),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def compared(model: str, name: str) -> tuple[list[str], int]:
    """Return the launches of a run that the warm-up does not know, and how many it has."""
    arguments, asked = RUNS[name]
    settings = {"max_model_len": 64, "max_num_seqs": 8, "num_gpu_blocks_override": 256, "device": "cuda:0"}
    with on_a_chip(), written() as calls, LLM(model=model, **settings, **arguments) as llm:
        params = [SamplingParams(**one) for one in asked]
        prompts = [{"prompt_token_ids": [5, 6, 7, 5, 6] * (1 + place)} for place in range(len(params))]
        llm.generate(prompts, params, use_tqdm=False)
        config = core_of(llm).config
    launched = {call.launch for call in calls}
    known = {part.launch for part in ahead.launched_parts(ahead.target_of(CHIP), lambda _: dry_run(config))}
    return sorted(launch.title for launch in launched - known), len(launched)


if __name__ == "__main__":
    print(json.dumps({name: compared(MODEL, name) for name in RUNS}))
