"""The table of plugin kinds. A new kind is a new row, never another mechanism.

Owns: `Kind` and `KINDS`. Never does: import plugins. Called by: discovery, selection, arguments, `core plugins`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin.

    name:            the kind's name in tables and on the command line.
    group:           entry-point group; entry-point names are the argument's values.
    argument:        engine argument, or a key of one, that chooses the plugin by name, or None.
    config_argument: engine argument, or a key of one, that holds the chosen plugin's own arguments, or None.
    by_name:         whether `config_argument` maps plugin names to arguments, because several plugins are chosen.
    count:           how many plugins are chosen, as text for people.
    contract:        `module:name` of the Protocol of the object that `core_load` builds: a name, not an import.
    alternatives:    further contracts, one of which an object may satisfy instead of `contract`.
    layer_contracts: (layer kind, contract) pairs, for a kind whose contract depends on the layers that a plugin declares.
    replaceable:     whether others can do the same work: one that fails is dropped unless named, and all is resolved again.
    """

    name: str
    group: str
    argument: str | None
    config_argument: str | None
    count: str
    replaceable: bool = False
    by_name: bool = False
    contract: str = ""
    alternatives: tuple[str, ...] = ()
    layer_contracts: tuple[tuple[str, str], ...] = ()


RUNTIME = "core_runtime.contracts"

KINDS: tuple[Kind, ...] = (
    Kind(
        "quantization", "core.quantization", "quantization", "quantization_config", "one or none",
        contract=f"{RUNTIME}:QuantizationMethod",
    ),
    Kind(
        "attention", "core.attention", "attention_backend", "attention_config", "one for each layer kind",
        replaceable=True, by_name=True, contract=f"{RUNTIME}:AttentionBackend",
        layer_contracts=(("latent", f"{RUNTIME}:LatentBackend"), ("state", f"{RUNTIME}:StateBackend")),
    ),
    Kind("platform", "core.platforms", "device", "platform_config", "one", replaceable=True, contract=f"{RUNTIME}:Platform"),
    Kind("loader", "core.loaders", "load_format", "model_loader_extra_config", "one", contract=f"{RUNTIME}:Loader"),
    Kind(
        "speculative", "core.speculative", "speculative_config", "speculative_config", "one or none",
        contract=f"{RUNTIME}:Proposer", alternatives=(f"{RUNTIME}:DraftHeads",),
    ),
    Kind(
        "kernels", "core.kernels", "kernels", "kernels_config", "many",
        replaceable=True, by_name=True, contract=f"{RUNTIME}:Kernels",
    ),
    Kind("policy", "core.policies", "scheduling_policy", None, "one", contract="core.api.policy:SchedulingPolicy"),
    Kind("executor", "core.executors", "executor", "executor_config", "one", contract="core.engine.executor:ExecutorMaker"),
    Kind(
        "model", "core.models", None, None, "one or none",
        contract=f"{RUNTIME}:ModelFamily", alternatives=(f"{RUNTIME}:HasRow",),
    ),
    Kind("grammar", "core.grammars", None, None, "many, one for each request", contract=f"{RUNTIME}:GrammarBackend"),
    Kind("response_format", "core.response_formats", None, None, "many", contract=f"{RUNTIME}:ResponseFormats"),
    Kind(
        "logits_processor", "core.logits_processors", "logits_processors", None, "many", contract=f"{RUNTIME}:LogitsProcessor"
    ),
    Kind(
        "kv_connector", "core.kv_connectors", "kv_connectors", "kv_connectors_config", "many",
        by_name=True, contract="core.kv.connector:KVConnector",
        alternatives=("core_kv_connectors.halves.contract:WorkerHalf",),
    ),
    Kind("adapter", "core.adapters", None, None, "many", contract=f"{RUNTIME}:AdapterFormat"),
    Kind("api", "core.apis", None, None, "many", contract="core_apis.contract:Api"),
    Kind("command", "core.commands", None, None, "one for each command line", contract="core.api.command:Command"),
    Kind("resolver", "core.adapter_resolvers", "lora_resolvers", None, "many", contract="core_adapters.resolvers:Resolver"),
    Kind(
        "processor", "core.processors", "mm_processor", "mm_processor_config", "one", contract="core_media.contract:Processor"
    ),
    Kind(
        "tokenizer", "core.tokenizers", "tokenizer_mode", "tokenizer_config", "one or none",
        contract="core_tokens.contract:TextTokenizer",
    ),
    Kind(
        "io_processor", "core.io_processors", "io_processor_plugin", "io_processor_config", "one or none",
        contract="core_frontend.io.contract:IOProcessor",
    ),
)  # fmt: skip

RESERVED_NAMES: frozenset[str] = frozenset({"auto", "none"})


def kind_named(name: str) -> Kind:
    """Return the kind called `name`. Raises KeyError."""
    return {kind.name: kind for kind in KINDS}[name]


def normalize(name: str) -> str:
    """Return a plugin name in the form in which names are compared: lower case, with `_` for `-`."""
    return name.strip().lower().replace("-", "_")
