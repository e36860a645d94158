"""Module paths under which scripts written for vLLM look for our names: `from core.sampling_params import SamplingParams`.

Owns: the table of these modules, and the finder that makes them. Never does: import anything before it is asked for, or
stand in for a module that exists. Called by: Python's import, once nothing else has found a module of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

PARAMS = "core.api.sampling_params"
OUTPUTS = "core.api.outputs"
POOLED = "core.api.pooling_outputs"
INPUTS = "core.library.inputs"
ARGS = "core.library.engine_args"
BEAMS = "core.library.beam_search"
METRICS = "core.library.metrics"
CHORES = "core.library.chores"
PARSER = "core.library.flexible_parser"
PROCESSORS = "core.plugin.contracts.indexed_processor"

OFFERED: tuple[tuple[str, str, str], ...] = (
    ("core.beam_search", BEAMS, "BeamSearchOutput BeamSearchSequence"),
    ("core.distributed", CHORES, "cleanup_dist_env_and_memory"),
    ("core.distributed.parallel_state", CHORES, "cleanup_dist_env_and_memory"),
    ("core.engine.arg_utils", ARGS, "AsyncEngineArgs EngineArgs"),
    ("core.engine.arg_utils", PARSER, "FlexibleArgumentParser"),
    ("core.engine.async_llm_engine", "core.library.async_llm", "AsyncLLMEngine"),
    ("core.engine.llm_engine", "core.library.llm_engine", "LLMEngine"),
    ("core.entrypoints.llm", "core.llm", "LLM"),
    ("core.inputs", INPUTS, "EmbedsPrompt PromptType TextPrompt TokensPrompt"),
    ("core.inputs.data", INPUTS, "EmbedsPrompt PromptType TextPrompt TokensPrompt"),
    ("core.logger", CHORES, "init_logger"),
    ("core.logprobs", OUTPUTS, "Logprob"),
    ("core.model_executor.model_loader", "core.library.sharded_state", "ShardedStateLoader"),
    ("core.outputs", OUTPUTS, "CompletionOutput RequestOutput"),
    ("core.outputs", POOLED, "ClassificationOutput ClassificationRequestOutput"),
    ("core.outputs", POOLED, "EmbeddingOutput EmbeddingRequestOutput"),
    ("core.outputs", "core.api.late_chunking", "LateChunk LateChunkingMetadata"),
    ("core.outputs", POOLED, "PoolingOutput PoolingRequestOutput ScoringOutput ScoringRequestOutput"),
    ("core.pooling_params", "core.api.pooling_params", "LateChunkingParams PoolingParams"),
    ("core.sampling_params", BEAMS, "BeamSearchParams"),
    ("core.sampling_params", PARAMS, "RequestOutputKind SamplingParams"),
    ("core.sampling_params", "core.api.structured_outputs", "StructuredOutputsParams"),
    ("core.sequence", OUTPUTS, "Logprob"),
    ("core.usage.usage_lib", CHORES, "UsageContext"),
    ("core.utils", CHORES, "random_uuid"),
    ("core.utils", PARSER, "FlexibleArgumentParser"),
    ("core.utils.print_utils", CHORES, "print_embeddings"),
    ("core.utils.argparse_utils", PARSER, "FlexibleArgumentParser"),
    ("core.v1.engine.async_llm", "core.library.async_llm", "AsyncLLM"),
    ("core.v1.engine.exceptions", "core.api.errors", "EngineDeadError"),
    ("core.v1.engine.llm_engine", "core.library.llm_engine", "LLMEngine"),
    ("core.v1.metrics.reader", METRICS, "Counter Gauge Histogram Metric Vector"),
    ("core.v1.sample.logits_processor", PROCESSORS, "AdapterLogitsProcessor BatchUpdate LogitsProcessor"),
    ("core.v1.sample.logits_processor", PROCESSORS, "MoveDirectionality RequestLogitsProcessor process_dict_updates"),
    ("core.v1.sample.logits_processor.builtin", PROCESSORS, "process_dict_updates"),
    ("core.v1.sample.logits_processor.interface", PROCESSORS, "AddedRequest BatchUpdate LogitsProcessor"),
    ("core.v1.sample.logits_processor.interface", PROCESSORS, "MoveDirectionality MovedRequest RemovedRequest"),
)
"""Rows of module, home and names: what a script may import from a module, and where it really is."""

NOT_SERVED: dict[str, str] = {
    "core.lora.request": "LoRA adapters are not served yet",
    "core.assets.image": "prompts are text or token ids",
    "core.assets.audio": "prompts are text or token ids",
    "core.assets.video": "prompts are text or token ids",
    "core.multimodal": "prompts are text or token ids",
    "core.benchmarks": "the datasets of benchmarks are those of core bench, see docs/commands.md",
    "core.config.ec_transfer": "an instance does not exchange anything with others",
    "core.config.kv_transfer": "an instance does not exchange anything with others",
    "core.distributed.kv_transfer": "an instance does not exchange anything with others",
    "core.platforms": "platforms are plugins, see docs/plugins",
    "core.model_executor": "models are plugins, see docs/plugins",
    "core.attention": "attention backends are plugins, see docs/plugins",
    "core.distributed.weight_transfer": "weights come from files and shared memory, see docs/sleep-and-weights.md",
    "core.envs": "variables of the environment are those of docs/arguments.md",
    "core.tokenizers": "LLM.get_tokenizer() gives the model's tokenizer",
    "core.transformers_utils": "LLM.get_tokenizer() gives the model's tokenizer, and LLM.model_config its settings",
    "core.tool_parsers": "parsers of answers are rows of data, see docs/response-formats.md",
    "core.reasoning": "parsers of answers are rows of data, see docs/response-formats.md",
    "core.v1.worker": "logits processors are of core.v1.sample.logits_processor; nothing else of the worker can be replaced",
}
"""Modules whose names no script can use here, and why."""


def _packages(modules: Iterable[str]) -> frozenset[str]:
    """The packages that these modules are in, `core` itself left out."""
    parts = [module.split(".") for module in modules]
    return frozenset(".".join(names[:end]) for names in parts for end in range(2, len(names)))


_OFFERING = _packages(row[0] for row in OFFERED)
_PACKAGES = _OFFERING | _packages(NOT_SERVED)


class AliasModule(ModuleType):
    """A module whose names live elsewhere; each is imported when it is first used.

    homes: the module of each name.
    """

    def __init__(self, name: str, homes: dict[str, str]) -> None:
        super().__init__(name, f"Names of {', '.join(sorted(set(homes.values()))) or 'no module'}.")
        self.homes = homes
        self.__all__ = sorted(homes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.homes:
            raise AttributeError(_sentence(self.__name__, name, self.homes))
        value = getattr(import_module(self.homes[name]), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.homes})


class AliasFinder:
    """Finds the modules of the table, and makes them; asked last."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the table; None for any other name.

        Raises ModuleNotFoundError, with the reason, for one that vLLM has and that cannot be served.
        """
        if not fullname.startswith("core."):
            return None
        is_offered = any(module == fullname for module, _, _ in OFFERED)
        if not is_offered and fullname not in _OFFERING:
            _refuse(fullname)
        if not is_offered and fullname not in _PACKAGES:
            return None
        return ModuleSpec(fullname, cast("Any", self), is_package=fullname in _PACKAGES)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, with nothing imported yet."""
        homes: dict[str, str] = {}
        for module, home, names in OFFERED:
            if module == spec.name:
                homes |= dict.fromkeys(names.split(), home)
        return AliasModule(spec.name, homes)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Put the finder behind all others, once a process."""
    if not any(type(finder).__name__ == AliasFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


def _refuse(fullname: str) -> None:
    """Raises ModuleNotFoundError for a module that no script can use here, or one inside of it."""
    for module, reason in NOT_SERVED.items():
        if f"{fullname}.".startswith(f"{module}."):
            # Python hides the reason of a submodule whose own name the error has
            raise ModuleNotFoundError(f"There is no {fullname}: {reason}.", name=module)
    package = fullname.rpartition(".")[0]
    if package in _OFFERING:
        raise ModuleNotFoundError(
            f"There is no {fullname}: docs/scripts.md says which of vLLM's modules there are.", name=package
        )


def _sentence(module: str, name: str, homes: dict[str, str]) -> str:
    offered = ", ".join(sorted(homes)) or "nothing"
    return f"module '{module}' has no attribute '{name}'; it offers {offered}"
