"""The hooks of a plugin's manifest: the whole interface between discovery and a plugin.

Owns: the hook specifications, their argument and answer types, and the contract number. Never does: call a hook
(`core.plugin.manifest` does, one at a time and with every exception caught). Called by: manifests (`from core.plugin import
hookspecs`).

A manifest is a torch-free module with `CONTRACT = 1` and functions marked `@hookimpl`. Only `core_load` may import
torch or a vendor's library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pluggy

from core.api.checkpoint_facts import CheckpointFacts, FileFacts
from core.api.config import EngineConfig
from core.api.reason import Reason
from core.api.specs import ACTIVATIONS, AttentionQuery, KernelQuery, StateQuery
from core.api.structured_outputs import GrammarSpec

CONTRACT = 1
hookspec = pluggy.HookspecMarker("core")
hookimpl = pluggy.HookimplMarker("core")


class PluginSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin's description of itself.

    name:         the same as the entry-point name.
    summary:      one line for `core plugins list`.
    arguments:    a frozen msgspec Struct class with the plugin's own arguments (field comments through
                  `typing.Annotated[..., msgspec.Meta(description=...)]`), or None.
    capabilities: declared limits that the core checks before `core_supports`. Known keys: `dtypes`, `kv_dtypes`,
                  `head_sizes`, `block_sizes`, `devices` (lists), `window`, `cap`, `sinks`, `alibi`, `batch_invariant`
                  (booleans), `layer_kinds`, `invariant_kinds`, `state_ops` (lists), `formats` (canonical formats),
                  `model_types` (lists), `operations` (a list, for kernels that compute nothing else). For the memory plan:
                  kernels declare `row_multiple`, `rank_multiple` (outputs, adapters' ranks packed side by side), platforms
                  `activation_dtype` (the type between layers; absent: the run's dtype). Platforms may declare `quantization`
                  (methods), `chunked_prefill`, `prefix_caching` and `device_graphs` (booleans), `reserved_bytes` (device
                  memory needed in addition to weights, cache and the buffers of a step), `logits_bytes` (budget for a step's
                  float32 logits) and `input_roundings` (for packed layers, see `LoadContext`); loaders `quantized` (a
                  boolean); proposers `learns` (a boolean): drafts also come from earlier requests.
    constraints:  {engine argument: allowed values}, checked when this plugin is chosen.
    priority:     higher wins when neither the user nor the checkpoint nor the platform decides.
    alias_of:     the name of the plugin that this entry point is another name for.
    """

    name: str
    summary: str = ""
    arguments: type[msgspec.Struct] | None = None
    capabilities: dict[str, Any] = {}
    constraints: dict[str, list[Any]] = {}
    priority: int = 0
    alias_of: str | None = None


class Device(msgspec.Struct, frozen=True):
    """One device that a platform reports.

    name:         `cpu`, `cuda:0`, ...
    description:  a few words for people.
    memory_bytes: memory that the engine may use, in bytes.
    total_bytes:  memory of the device in bytes, of which arguments give fractions; 0: the same as `memory_bytes`.
    processors:   number of processors of a host device, which ranks share; 0 for a device that serves one rank.
    profile:      the platform's own name for the class of the device, such as an architecture; used in its proposals.
    """

    name: str
    description: str
    memory_bytes: int
    total_bytes: int = 0
    processors: int = 0
    profile: str = ""


class Probe(msgspec.Struct, frozen=True):
    """A platform's answer to `core_probe`: its devices, or the reason why there are none."""

    devices: tuple[Device, ...] = ()
    unavailable: str = ""


class PlatformView(msgspec.Struct, frozen=True):
    """The facts that a platform receives with `core_propose`.

    set_by_user: names of arguments that the user gave.
    """

    context: str
    facts: CheckpointFacts | None
    arguments: dict[str, Any]
    set_by_user: tuple[str, ...]
    device: Device


class Proposal(msgspec.Struct, frozen=True):
    """A platform's proposed value for an argument that the user left open, with the reason for it."""

    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class LoadContext:
    """The argument of `core_load`. Fields that a kind does not need are None.

    device:    a name such as `cpu`.
    dtype:     a name such as `bfloat16`.
    arguments: the plugin's own arguments (its Struct), or None.
    facts:     facts about the checkpoint; None for an online quantization.
    manifest:  the checkpoint's manifest, a `core_runtime.specs.checkpoint.CheckpointManifest`; None for an online
               quantization.
    config:    the resolved configuration, when there is one already.
    kernels:   the platform's kernels, a `Kernels` (attention, quantization).
    roundings: precisions that make a device faster when the inputs of packed layers are rounded to them (quantization).
               A method's `auto` chooses among these.
    options:   kind-specific extras, which the page of the kind names.
    """

    device: str = "cpu"
    dtype: str = "bfloat16"
    arguments: Any = None
    facts: CheckpointFacts | None = None
    manifest: Any = None
    config: EngineConfig | None = None
    kernels: Any = None
    roundings: Sequence[str] = ACTIVATIONS
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The argument of `core_draft_spec`. It passes model shapes on without depending on their types.

    target:    the shape of the target model, a `core_runtime.specs.module_spec.ModelSpec`.
    hf_config: the draft's configuration, in the style of `config.json`; the target's when no draft checkpoint was named.
    arguments: the plugin's own arguments, as its Struct (None when it has none).
    decoder:   the model that the engine's own table of families builds from `hf_config`, a
               `core_runtime.specs.decoder_spec.DecoderSpec`; None when the table does not know the model, or when no draft
               checkpoint was named.
    why_no_decoder: a sentence when `decoder` is None although there is a draft checkpoint.
    tensors:   names of the tensors in the draft checkpoint.
    has_checkpoint: whether `speculative_config.model` names a checkpoint of the draft's own.
    """

    target: Any
    hf_config: Mapping[str, Any]
    arguments: Any = None
    decoder: Any = None
    why_no_decoder: str = ""
    tensors: Collection[str] = ()
    has_checkpoint: bool = True


class ManifestHooks:
    """The hook specifications. Only `core_spec` and `core_load` are required (`core_load` not with `core_draft_spec`)."""

    @hookspec(firstresult=True)
    def core_spec(self) -> PluginSpec:
        """Describe the plugin."""
        raise AssertionError("a specification is never called")

    @hookspec(firstresult=True)
    def core_claim(self, facts: CheckpointFacts | FileFacts) -> str | None:
        """Say why this plugin claims this checkpoint (quantization) or these files (loader); None: it does not."""

    @hookspec(firstresult=True)
    def core_probe(self) -> Probe | None:
        """Platforms: look for devices, without torch. Runs in a helper process with a time limit."""

    @hookspec(firstresult=True)
    def core_supports(
        self, query: AttentionQuery | StateQuery | KernelQuery | CheckpointFacts | GrammarSpec
    ) -> list[Reason]:
        """Say what is missing; an empty list means supported."""
        raise AssertionError("a specification is never called")

    @hookspec(firstresult=True)
    def core_propose(self, view: PlatformView) -> dict[str, Proposal] | None:
        """Platforms: propose values for arguments that the user left open.

        `attention_backend` and `kernels` are lists of names in order of preference. Plugins of other packages in these lists
        need not be named by the user.
        """

    @hookspec(firstresult=True)
    def core_numerics(self, platform: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
        """Kernels and attention: return the `numerics` that the loaded object will have, without importing torch.

        platform, arguments: of the platform's and the plugin's own arguments, those that the user gave.
        """

    @hookspec(firstresult=True)
    def core_weights_nbytes(self, arguments: Any, facts: CheckpointFacts) -> int | None:
        """Proposers: return the bytes of their own weights in the loaded object, without torch, for the memory plan.

        arguments: the plugin's own arguments, as its Struct (None when it has none).
        facts: facts about the target model.
        """

    @hookspec(firstresult=True)
    def core_draft_spec(self, context: DraftContext) -> Any:
        """Proposers: describe a draft that the engine runs, a `core_runtime.specs.draft_spec.DraftSpec`, without torch.

        When the spec has a decoder, `core_load` is not needed; when it has none, `core_load` builds `DraftHeads`. When the
        answer is None, or without this hook, `core_load` builds a `Proposer`. Raise UserError for a checkpoint that cannot
        draft for the target.
        """

    @hookspec(firstresult=True)
    def core_load(self, context: LoadContext) -> Any:
        """Build the object that this kind's contract describes (see `core.plugin.kinds`). Only this hook may import torch."""
