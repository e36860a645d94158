"""Building of a runnable model of transformers.

Owns: the order in which it is built, filled and checked. Never does: bind a cache. Called by: the model's instance.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from core.api.errors import UserError
from core.api.step_limits import StepLimits
from core_runtime.contracts import Loader, QuantizationMethod
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.workspace import Workspace
from core_runtime.models.fallback.attention import PagedLayer, StandIn, answer_with
from core_runtime.models.fallback.loading import ModuleLoading
from core_runtime.models.fallback.model import ModuleModel, ModuleWeights
from core_runtime.models.fallback.pointwise import put_pointwise
from core_runtime.models.fallback.shape import Shaped
from core_runtime.models.fallback.skeleton import fill_buffers
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.part_store import PartStore
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.model_part import Part

TOLERANCE: Final = 0.02
"""Maximum deviation as a share of the largest logit. Rounding to bfloat16 stays below it between batches; another token
or position never does.
"""


def build_modules(
    shaped: Shaped,
    loader: Loader,
    manifest: CheckpointManifest,
    method: QuantizationMethod | None,
    kernels: KernelSet,
    dtype: str,
    activation_dtype: torch.dtype,
    device: torch.device,
    limits: StepLimits,
    store: PartStore | None = None,
    *,
    progress: bool = False,
) -> ModuleModel:
    """Read the weights and build the model.

    manifest: the checkpoint's tensors under the names of the modules.
    method, dtype, activation_dtype, store: see `Packing`.
    limits: limits of one step.
    Raises UserError for a model whose tokens see each other outside attention.
    """
    spec = shaped.spec
    fill_buffers(shaped.model, device)
    packing = Packing(spec, Part(), method, kernels, dtype, activation_dtype, device, store)
    prepared = ModuleLoading(shaped, manifest, packing, activation_dtype, device).run(loader, progress=progress)
    with torch.inference_mode():
        put_pointwise(shaped.model, kernels, activation_dtype)
        check_apart(shaped, device)
    mixers = _layers(shaped, device)
    weights = ModuleWeights(shaped.model, spec, prepared)
    modules = shaped.trial.attention_modules
    workspace = Workspace(device)
    return ModuleModel(spec, shaped.model, weights, modules, mixers, kernels, workspace, activation_dtype, limits)


def check_apart(shaped: Shaped, device: torch.device) -> None:
    """Check that without attention a token's row is the same in any batch and depends on its own position alone.

    Only then can all sequences of a step be one row of tokens. Raises UserError.
    """
    model = shaped.model
    answer_with(model, StandIn(), shaped.trial.attention_modules)
    last = min(shaped.spec.vocab_size, shaped.spec.max_position) - 1
    numbers = [min(number, last) for number in (1, 5, 2, 7, 3)]
    tokens = torch.tensor([numbers], device=device)
    positions = torch.tensor([[0, 1, 2, 0, 3]], device=device).clamp(max=last)
    label = f"{type(model).__name__} of transformers cannot run on paged attention"
    try:
        together = _logits(model, tokens, positions)
        alone: list[Tensor] = []
        for index in range(len(numbers)):
            one = slice(index, index + 1)
            alone.append(_logits(model, tokens[:, one], positions[:, one]))
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(f"{label}: a trial call failed ({type(error).__name__}: {first}).") from error
    by_token = torch.cat(alone)
    difference = float((together - by_token).abs().max())
    if not difference <= TOLERANCE * float(by_token.abs().max()):
        raise UserError(
            f"{label}: a token's numbers depend on other tokens outside attention, or not on the position that it is given."
        )


def _logits(model: nn.Module, tokens: Tensor, positions: Tensor) -> Tensor:
    """Return float32 logits [T, V] of one whole call."""
    out = model(input_ids=tokens, position_ids=positions, use_cache=False)
    logits: Tensor = out.logits[0].float()
    return logits


def _layers(shaped: Shaped, device: torch.device) -> list[PagedLayer]:
    layers: list[PagedLayer] = []
    for spec, name in zip(shaped.spec.mixers, shaped.trial.sinks, strict=True):
        layer = PagedLayer(spec)
        if name is not None:
            layer.sinks = shaped.model.get_parameter(name).to(device, torch.float32)
        layers.append(layer)
    return layers
