"""The spec of a model of transformers, from its modules and their trial.

Owns: the choice of tensors that become native matrices. Never does: read a weight. Called by: the description, the
loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from core.api.specs import LayerSpec
from core_runtime.models.fallback.names import Names
from core_runtime.models.fallback.skeleton import build_skeleton
from core_runtime.models.fallback.trial import Trial, run_trial
from core_runtime.specs.module_spec import ModuleSpec


@dataclass(slots=True)
class Shaped:
    """A model without weights, with its trial, its tensor names and its spec."""

    model: nn.Module
    trial: Trial
    names: Names
    spec: ModuleSpec


def shaped_model(
    hf_config: Mapping[str, Any], names: Iterable[str], dtype: torch.dtype, directory: str | None
) -> Shaped:
    """Build and try a model. names: names of the checkpoint's tensors. For the other arguments see `build_skeleton`.
    Raises UserError.
    """
    model = build_skeleton(hf_config, dtype, directory)
    trial = run_trial(model)
    mapped = Names(model, names)
    return Shaped(model, trial, mapped, _spec(model, trial, mapped))


def _spec(model: nn.Module, trial: Trial, names: Names) -> ModuleSpec:
    config: Any = model.config
    modules = {module: name for name, module in model.named_modules()}
    embedding = _embedding(model, trial, modules)
    head_module = model.get_output_embeddings()
    head_name = modules.get(head_module, "")
    tied = embedding is not None and _tied_head(model, head_name, f"{embedding.name}.weight")
    head = None
    matrices: list[LayerSpec] = []
    for name in trial.linears:
        linear = model.get_submodule(name)
        if name == head_name:
            if not tied:
                head = _matrix(name, linear, "head")
        else:
            matrices.append(_matrix(name, linear, "linear"))
    made = [one for one in (embedding, *matrices, head) if one is not None]
    taken = {f"{one.name}.weight" for one in made} | {f"{one.name}.bias" for one in made}
    taken.update(getattr(model, "all_tied_weights_keys", {}))
    tensors: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in taken:
            tensors[name] = tuple(tensor.shape)
    return ModuleSpec(
        family=str(config.model_type),
        hidden_size=trial.hidden_size,
        vocab_size=trial.vocab_size,
        max_position=int(getattr(config, "max_position_embeddings", None) or 2048),
        mixers=tuple(trial.mixers),
        matrices=tuple(matrices),
        embedding_matrix=embedding,
        head_matrix=head,
        tied=tied,
        tensors=tensors,
        renamed=names.renamed,
        gathered=names.gathered,
        widest=max((matrix.shape[0] for matrix in matrices), default=trial.hidden_size),
    )


def _embedding(model: nn.Module, trial: Trial, modules: dict[nn.Module, str]) -> LayerSpec | None:
    if not trial.embeds:
        return None
    module = model.get_input_embeddings()
    rows, width = module.weight.shape
    return LayerSpec(modules[module], "embedding", (rows, width))


def _tied_head(model: nn.Module, head: str, embedding: str) -> bool:
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
    return ties.get(f"{head}.weight") == embedding


def _matrix(name: str, module: nn.Module, role: Any) -> LayerSpec:
    assert isinstance(module, nn.Linear)
    return LayerSpec(name, role, (module.out_features, module.in_features), module.bias is not None)
