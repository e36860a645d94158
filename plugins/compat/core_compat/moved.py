"""Moved modules under their old names, for plugins written against them.

Owns: the table of moved modules, and the finder that returns the module itself, never a second copy. Never does: keep a
name after `core.plugin.moved.UNTIL`. Called by: the loading of plugins, through the entry point `core.moved_names`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

from core.plugin.moved import UNTIL

MOVED: Final[tuple[tuple[str, str], ...]] = (
    ("core.testing", "core_kit"),
    ("core.testing.async_device", "core_kit.devices.async_device"),
    ("core.testing.fake_device", "core_kit.devices.fake_device"),
    ("core.testing.graph_runtime", "core_kit.devices.graph_runtime"),
    ("core.testing.states", "core_kit.checks.states"),
    ("core.testing.weights", "core_kit.fixtures.weights"),
    ("core.testing.wired", "core_kit.devices.wired"),
    ("core.engine.inproc", "core_supervision.link.inproc"),
    ("core.engine.ledger", "core_supervision.link.ledger"),
    ("core.layers", "core_runtime.layers"),
    ("core.weights", "core_runtime.weights"),
    ("core.models", "core_runtime.models"),
    ("core.models.families.alibi", "core_models.alibi"),
    ("core.models.families.bert", "core_models.bert"),
    ("core.models.families.by_kind", "core_models.by_kind"),
    ("core.models.families.cohere", "core_models.cohere"),
    ("core.models.families.cohere_moe", "core_models.cohere_moe"),
    ("core.models.families.dbrx", "core_models.dbrx"),
    ("core.models.families.deepseek", "core_models.deepseek"),
    ("core.models.families.exaone", "core_models.exaone"),
    ("core.models.families.falcon", "core_models.falcon"),
    ("core.models.families.gemma", "core_models.gemma"),
    ("core.models.families.glm", "core_models.glm"),
    ("core.models.families.gpt2", "core_models.gpt2"),
    ("core.models.families.gpt_oss", "core_models.gpt_oss"),
    ("core.models.families.hunyuan", "core_models.hunyuan"),
    ("core.models.families.hybrid", "core_models.hybrid"),
    ("core.models.families.latent", "core_models.latent"),
    ("core.models.families.lfm2", "core_models.lfm2"),
    ("core.models.families.llama", "core_models.llama"),
    ("core.models.families.llama4", "core_models.llama4"),
    ("core.models.families.mamba", "core_models.mamba"),
    ("core.models.families.moe", "core_models.moe"),
    ("core.models.families.olmo", "core_models.olmo"),
    ("core.models.families.opt", "core_models.opt"),
    ("core.models.families.phi", "core_models.phi"),
    ("core.models.families.plain_mlp", "core_models.plain_mlp"),
    ("core.models.families.remote", "core_models.remote"),
    ("core.models.families.scaled", "core_models.scaled"),
    ("core.models.families.sigmoid_moe", "core_models.sigmoid_moe"),
    ("core.formats", "core_formats"),
    ("core.formats.response_parser", "core_formats.answers.parser"),
    ("core.tokens", "core_tokens"),
    ("core.grammars", "core_grammars"),
    ("core.sampling", "core_runtime.sampling"),
    ("core.checkpoint_files", "core_tokens.checkpoint_files"),
    ("core.api.sampling_fields", "core_frontend.api.sampling_fields"),
    ("core.args.convert", "core_config.arguments.convert"),
    ("core.args.foreign", "core_config.arguments.foreign"),
    ("core.args.parser", "core_config.arguments.parser"),
    ("core.args.reach", "core_config.arguments.reach"),
    ("core.args.sources", "core_config.arguments.sources"),
    ("core.plugin.entry_points", "core.entry_points"),
    ("core.plugin.ranking", "core_config.selection.ranking"),
    ("core.plugin.selection", "core_config.selection"),
    ("core.plugin.contracts", "core_runtime.contracts"),
    ("core.plugin.contracts.grammar", "core_grammars.contract"),
    ("core.plugin.contracts.response_format", "core_formats.contract"),
    ("core.api.decoding", "core.api.errors"),
    ("core.api.tensor_info", "core.api.weights"),
    ("core.api.block_parts", "core_runtime.specs.block_parts"),
    ("core.api.block_spec", "core_runtime.specs.block_spec"),
    ("core.api.checkpoint", "core_runtime.specs.checkpoint"),
    ("core.api.declaration", "core_runtime.specs.declaration"),
    ("core.api.decoder_spec", "core_runtime.specs.decoder_spec"),
    ("core.api.draft_input", "core_runtime.specs.draft_input"),
    ("core.api.draft_spec", "core_runtime.specs.draft_spec"),
    ("core.api.graph_sizes", "core_runtime.specs.graph_sizes"),
    ("core.api.local_spec", "core_runtime.specs.local_spec"),
    ("core.api.mixer_parts", "core_runtime.specs.mixer_parts"),
    ("core.api.model_part", "core_runtime.specs.model_part"),
    ("core.api.module_spec", "core_runtime.specs.module_spec"),
    ("core.api.pooling_head", "core_runtime.specs.pooling_head"),
    ("core.api.vllm_config", "core_runtime.specs.vllm_config"),
    ("core.api.explanation", "core_frontend.api.explanation"),
    ("core.api.late_chunking", "core_frontend.api.late_chunking"),
    ("core.api.outputs", "core_frontend.api.outputs"),
    ("core.api.pooling_outputs", "core_frontend.api.pooling_outputs"),
    ("core.api.pooling_params", "core_frontend.api.pooling_params"),
    ("core.api.server_config", "core_config.served.server_config"),
    ("core.api.answer_events", "core_formats.answers.events"),
    ("core.library", "core_frontend.library"),
    ("core.llm", "core_frontend.llm"),
)
"""Rows of old and new module. A row also covers the modules inside it; a longer row takes precedence over a shorter
one. The package of an old module must still exist, or have its own row.
"""


class MovedFinder:
    """Finder for modules under old names. It is asked first, because the import of `OLD.INNER` would otherwise search
    the new package's folder and run INNER a second time.

    rows: in the form of MOVED.
    """

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self._new = {old: new for old, new in rows if old != new}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a moved module; None for any other name."""
        return ModuleSpec(fullname, cast("Any", self)) if self._moved_to(fullname) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Use Python's own empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module under its new name, and put it in place of the empty one."""
        old = module.__name__
        new = self._moved_to(old)
        warnings.warn(f"{old} is {new}; the old name is kept until {UNTIL}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)

    def _moved_to(self, old: str) -> str:
        """Return the new name; empty for a module that has not moved."""
        parts = old.split(".")
        for end in range(len(parts), 1, -1):
            new = self._new.get(".".join(parts[:end]))
            if new is not None:
                return ".".join([new, *parts[end:]])
        return ""


def install() -> None:
    """Put the finder before all others, unless no module has moved."""
    if MOVED:
        sys.meta_path.insert(0, MovedFinder(MOVED))
