"""Module paths of vLLM with our names: `from core_compat.sampling_params import SamplingParams`.

Owns: the table of these modules, and the finder that creates them, inside the compat package and `core`. Never does:
import anything before its name is used, or replace a module that exists. Called by: the compat package, whose import
alone installs the finder; Python's import then, once no other finder has the module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

PARAMS = "core.api.sampling_params"
OUTPUTS = "core_frontend.api.outputs"
POOLED = "core_frontend.api.pooling_outputs"
INPUTS = "core_frontend.library.inputs"
ARGS = "core_frontend.library.engine_args"
BEAMS = "core_frontend.library.beam_search"
METRICS = "core_frontend.library.metrics"
CHORES = "core_frontend.library.chores"
PARSER = "core_frontend.library.flexible_parser"
PROCESSORS = "core_runtime.contracts.indexed_processor"

PACKAGES = ("core_compat.", "core.")
"""Packages in which the modules appear; before `import core_compat`, in neither of them."""
WHOLE = "*"
"""Stands for all names of the home module, including its own errors about missing names."""

OFFERED: tuple[tuple[str, str, str], ...] = (
    ("config", "core_config", WHOLE),
    ("version", "core.version", WHOLE),
    ("beam_search", BEAMS, "BeamSearchOutput BeamSearchSequence"),
    ("distributed", CHORES, "cleanup_dist_env_and_memory"),
    ("distributed.parallel_state", CHORES, "cleanup_dist_env_and_memory"),
    ("engine.arg_utils", ARGS, "AsyncEngineArgs EngineArgs"),
    ("engine.arg_utils", PARSER, "FlexibleArgumentParser"),
    ("engine.async_llm_engine", "core_frontend.library.async_llm", "AsyncLLMEngine"),
    ("engine.llm_engine", "core_frontend.library.llm_engine", "LLMEngine"),
    ("entrypoints.llm", "core_frontend.llm", "LLM"),
    ("inputs", INPUTS, "EmbedsPrompt PromptType TextPrompt TokensPrompt"),
    ("inputs.data", INPUTS, "EmbedsPrompt PromptType TextPrompt TokensPrompt"),
    ("logger", CHORES, "init_logger"),
    ("logprobs", OUTPUTS, "Logprob"),
    ("lora.request", "core_frontend.library.lora_request", "LoRARequest"),
    ("model_executor.model_loader", "core_frontend.library.sharded_state", "ShardedStateLoader"),
    ("outputs", OUTPUTS, "CompletionOutput RequestOutput"),
    ("outputs", POOLED, "ClassificationOutput ClassificationRequestOutput"),
    ("outputs", POOLED, "EmbeddingOutput EmbeddingRequestOutput"),
    ("outputs", "core_frontend.api.late_chunking", "LateChunk LateChunkingMetadata"),
    ("outputs", POOLED, "PoolingOutput PoolingRequestOutput ScoringOutput ScoringRequestOutput"),
    ("pooling_params", "core_frontend.api.pooling_params", "LateChunkingParams PoolingParams"),
    ("sampling_params", BEAMS, "BeamSearchParams"),
    ("sampling_params", PARAMS, "RequestOutputKind SamplingParams"),
    ("sampling_params", "core.api.structured_outputs", "StructuredOutputsParams"),
    ("sequence", OUTPUTS, "Logprob"),
    ("usage.usage_lib", CHORES, "UsageContext"),
    ("utils", CHORES, "random_uuid"),
    ("utils", PARSER, "FlexibleArgumentParser"),
    ("utils.print_utils", CHORES, "print_embeddings"),
    ("utils.argparse_utils", PARSER, "FlexibleArgumentParser"),
    ("v1.engine.async_llm", "core_frontend.library.async_llm", "AsyncLLM"),
    ("v1.engine.exceptions", "core.api.errors", "EngineDeadError"),
    ("v1.engine.llm_engine", "core_frontend.library.llm_engine", "LLMEngine"),
    ("v1.metrics.reader", METRICS, "Counter Gauge Histogram Metric Vector"),
    ("v1.sample.logits_processor", PROCESSORS, "AdapterLogitsProcessor BatchUpdate LogitsProcessor"),
    ("v1.sample.logits_processor", PROCESSORS, "MoveDirectionality RequestLogitsProcessor process_dict_updates"),
    ("v1.sample.logits_processor.builtin", PROCESSORS, "process_dict_updates"),
    ("v1.sample.logits_processor.interface", PROCESSORS, "AddedRequest BatchUpdate LogitsProcessor"),
    ("v1.sample.logits_processor.interface", PROCESSORS, "MoveDirectionality MovedRequest RemovedRequest"),
)
"""Rows of module, home and names: vLLM's module without its first word, the module that defines the names, and the
names.
"""

NOT_SERVED: dict[str, str] = {
    "assets.image": "prompts are text or token ids",
    "assets.audio": "prompts are text or token ids",
    "assets.video": "prompts are text or token ids",
    "multimodal": "prompts are text or token ids",
    "benchmarks": "the datasets of benchmarks are those of core bench, see docs/commands.md",
    "config.ec_transfer": "an instance does not exchange anything with others",
    "config.kv_transfer": "an instance does not exchange anything with others",
    "distributed.kv_transfer": "an instance does not exchange anything with others",
    "platforms": "platforms are plugins, see docs/plugins",
    "model_executor": "models are plugins, see docs/plugins",
    "attention": "attention backends are plugins, see docs/plugins",
    "distributed.weight_transfer": "weights come from files and shared memory, see docs/sleep-and-weights.md",
    "envs": "variables of the environment are those of docs/arguments.md",
    "tokenizers": "LLM.get_tokenizer() gives the model's tokenizer",
    "transformers_utils": "LLM.get_tokenizer() gives the model's tokenizer, and LLM.model_config its settings",
    "tool_parsers": "parsers of answers are rows of data, see docs/response-formats.md",
    "reasoning": "parsers of answers are rows of data, see docs/response-formats.md",
    "v1.worker": "logits processors are of core.v1.sample.logits_processor; nothing else of the worker can be replaced",
}
"""Modules of vLLM that are not supported, with the reason."""
NAMES_NOT_SERVED: dict[str, str] = {
    "ModelRegistry": "models are plugins, see docs/plugins",
    "initialize_ray_cluster": "an engine with Ray joins a cluster itself, see docs/ranks.md",
}
"""Names in vLLM's package itself that are not supported, with the reason."""


def _packages(modules: Iterable[str]) -> frozenset[str]:
    """Return the packages that contain these modules."""
    parts = [module.split(".") for module in modules]
    return frozenset(".".join(names[:end]) for names in parts for end in range(1, len(names)))


_OFFERING = _packages(row[0] for row in OFFERED)
_PACKAGES = _OFFERING | _packages(NOT_SERVED)


class AliasModule(ModuleType):
    """A module whose names are defined elsewhere; each is imported on first use.

    homes: the module of each name; the entry WHOLE serves all others.
    """

    def __init__(self, name: str, homes: dict[str, str]) -> None:
        super().__init__(name, f"Names of {', '.join(sorted(set(homes.values()))) or 'no module'}.")
        self.homes = homes
        self.__all__ = sorted({*homes} - {WHOLE})

    def __getattr__(self, name: str) -> Any:
        home = self.homes.get(name, self.homes.get(WHOLE))
        if home is None or (name.startswith("__") and name not in self.homes and name != "__version__"):
            raise AttributeError(_sentence(self.__name__, name, self.__all__))
        value = getattr(import_module(home), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


class AliasFinder:
    """Finder for the modules of the table; it is asked last."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the table; None for any other name.

        Raises ModuleNotFoundError, with the reason, for a module of vLLM's that is not supported.
        """
        package, module = _split(fullname)
        if not module:
            return None
        is_offered = any(row[0] == module for row in OFFERED)
        if not is_offered and module not in _OFFERING:
            _refuse(package, module)
        if not is_offered and module not in _PACKAGES:
            return None
        return ModuleSpec(fullname, cast("Any", self), is_package=module in _PACKAGES)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, with nothing imported yet."""
        homes: dict[str, str] = {}
        for module, home, names in OFFERED:
            if module == _split(spec.name)[1]:
                homes |= dict.fromkeys(names.split(), home)
        return AliasModule(spec.name, homes)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no code."""


def install() -> None:
    """Append the finder to Python's list, once per process."""
    if not any(type(finder).__name__ == AliasFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


def _split(fullname: str) -> tuple[str, str]:
    """Split a name into our package, with a trailing dot, and vLLM's module in it; both are empty for any other module."""
    for package in PACKAGES:
        if fullname.startswith(package):
            return package, fullname.removeprefix(package)
    return "", ""


def _refuse(package: str, module: str) -> None:
    """Raise ModuleNotFoundError for an unsupported module, or one inside it."""
    for known, reason in NOT_SERVED.items():
        if f"{module}.".startswith(f"{known}."):
            # Python hides the reason if the error carries the submodule's own name
            raise ModuleNotFoundError(f"There is no {package}{module}: {reason}.", name=f"{package}{known}")
    parent = module.rpartition(".")[0]
    if parent in _OFFERING:
        raise ModuleNotFoundError(
            f"There is no {package}{module}: docs/scripts.md says which of vLLM's modules there are.",
            name=f"{package}{parent}",
        )


def _sentence(module: str, name: str, names: Sequence[str]) -> str:
    return f"module '{module}' has no attribute '{name}'; it offers {', '.join(names) or 'nothing'}"
