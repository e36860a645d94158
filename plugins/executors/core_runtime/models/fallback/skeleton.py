"""A model of transformers, built from its configuration alone.

Owns: the choice of the class, its construction on the meta device, and the values of buffers that no checkpoint has.
Never does: read a weight, use the network, run code of a checkpoint without permission.
Called by: the description, the loading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from core.api.errors import UserError
from core_runtime.models.fallback.attention import register
from core_tokens.checkpoint_files import inside

CODE = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
"""A class in a module of the checkpoint, in the notation of `auto_map`."""
USED = ("AutoConfig", "AutoModelForCausalLM")
"""Keys of `auto_map` that are followed."""
STATEFUL = frozenset({"conv", "linear_attention", "mamba", "recurrent"})
"""Types of layers that carry a state from token to token."""
KEPT_OUT = ("quantization_config", "architectures", "auto_map", "torch_dtype", "dtype", "transformers_version")
"""Keys of a configuration that do not affect the modules."""


def build_skeleton(hf_config: Mapping[str, Any], dtype: torch.dtype, directory: str | None = None) -> nn.Module:
    """Return the model in evaluation mode, with all tensors on the meta device.

    dtype: dtype of its tensors, as far as the model leaves the choice.
    directory: the checkpoint's directory when its own code may be run; None: it may not.
    Raises UserError for a configuration from which transformers builds no causal language model.
    """
    import transformers

    trial_name = register()
    model_type = str(hf_config.get("model_type") or "")
    options: dict[str, Any] = {"attn_implementation": trial_name, "dtype": dtype}
    try:
        if directory is not None:
            check_code(hf_config, Path(directory))
        config = _configuration(hf_config, directory)
        if directory is not None:
            options["trust_remote_code"] = True
        with torch.device("meta"):
            model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, **options)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise UserError(
            f"transformers {transformers.__version__} cannot build a model of type '{model_type}' from this "
            f"configuration: {type(error).__name__}: {first}"
        ) from error
    if getattr(model, "_is_stateful", False) or _has_states(config):
        raise UserError(
            f"models of type '{model_type}' carry a state from token to token, which transformers keeps in a cache of "
            "its own; only a row of the table of families or a `model` plugin can serve them."
        )
    return model.eval()


def _has_states(config: Any) -> bool:
    """Whether any layer has a state by its type: LFM2 does not declare itself stateful."""
    return not STATEFUL.isdisjoint(getattr(config, "layer_types", None) or ())


def _configuration(hf_config: Mapping[str, Any], directory: str | None) -> Any:
    import transformers

    given = {key: value for key, value in hf_config.items() if key not in KEPT_OUT}
    model_type = given.pop("model_type", "")
    if directory is None:
        if "auto_map" in hf_config and model_type not in transformers.CONFIG_MAPPING:
            raise UserError("its classes come as code with the checkpoint; --trust-remote-code allows to run that code")
        config = transformers.AutoConfig.for_model(model_type, **given)
    else:
        config = transformers.AutoConfig.from_pretrained(
            directory, trust_remote_code=True, local_files_only=True, **given
        )
    if config.get_text_config(decoder=True).model_type != config.model_type:
        raise UserError("it has parts beside the decoder of text, which are not served")
    return config


def check_code(hf_config: Mapping[str, Any], directory: Path) -> None:
    """Raise UserError when `auto_map` names code that does not lie in the checkpoint's own directory.

    `owner/model--module.Class` names another repository, whose code the user has not allowed.
    """
    for key, named in dict(hf_config.get("auto_map") or {}).items():
        for name in named if isinstance(named, list) else [named]:
            if name is None:
                continue
            if not isinstance(name, str) or not CODE.fullmatch(name):
                raise UserError(
                    f"its auto_map names {str(name)[:200]!r} for {str(key)[:100]}; expected MODULE.CLASS of a file of the "
                    "checkpoint. Copy that code into its directory, once you have read it."
                )
            if key in USED:
                inside(directory, f"{name.partition('.')[0]}.py")


def fill_buffers(model: nn.Module, device: torch.device) -> None:
    """Fill the buffers that no checkpoint has, as transformers does after loading.

    Raises UserError when a model does not say how.
    """
    persistent = set(model.state_dict(keep_vars=True))
    owners: dict[str, nn.Module] = {}
    for prefix, module in model.named_modules():
        left = False
        for name, buffer in module.named_buffers(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            if full not in persistent:
                module._buffers[name] = _unset(buffer, device)
                left = True
        if left:
            owners[prefix] = module
    with torch.no_grad(), torch.device(device):
        for prefix, module in owners.items():
            _model_around(model, prefix)._init_weights(module)
    for module in owners.values():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and bool(buffer.isnan().any()):
                raise UserError(
                    f"{type(module).__name__} of transformers does not say what its buffer '{name}' holds, "
                    "so the model cannot be loaded."
                )


def _model_around(model: nn.Module, name: str) -> Any:
    """Return the innermost transformers model around a module, which can initialize it."""
    from transformers import PreTrainedModel

    while name:
        around = model.get_submodule(name)
        if isinstance(around, PreTrainedModel):
            return around
        name, _, _ = name.rpartition(".")
    return model


def _unset(buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a buffer like this one, filled with numbers that mark it as unset."""
    if buffer.is_floating_point():
        return torch.full(buffer.shape, math.nan, dtype=buffer.dtype, device=device)
    return torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)
