"""The choice of plugins, stage by stage, with the reason for every candidate that was rejected.

Owns: the rules of choice, one file per stage. Never does: load a plugin, read files, or know the engine's arguments beyond the
choices given. Called by: config, which feeds the answer of each stage to the next.

One rule everywhere: an explicit choice is used or is an error, never replaced. Otherwise the checkpoint's declaration, the
platform's preference, priority and name decide, in that order. A plugin that is merely installed (from another package than the
engine's, neither named by the user nor provided by the platform's package) is considered only when nothing else can do the
work, so that installing a package changes nothing that works without it.
"""

from core_config.selection.attention import select_attention
from core_config.selection.by_name import (
    select_adapters,
    select_executor,
    select_grammars,
    select_io_processor,
    select_kv_connectors,
    select_logits_processors,
    select_policy,
    select_processor,
    select_speculative,
    select_tokenizer,
)
from core_config.selection.checkpoint import select_loader, select_model
from core_config.selection.kernels import select_kernels
from core_config.selection.platform import select_platform
from core_config.selection.quantization import OtherNames, select_quantization

__all__ = [
    "OtherNames",
    "select_adapters",
    "select_attention",
    "select_executor",
    "select_grammars",
    "select_io_processor",
    "select_kernels",
    "select_kv_connectors",
    "select_loader",
    "select_logits_processors",
    "select_model",
    "select_platform",
    "select_policy",
    "select_processor",
    "select_quantization",
    "select_speculative",
    "select_tokenizer",
]
