"""The numbers of a tower's tensors, as transformers has them.

Owns: the undoing of what conversion did to them. Never does: choose a name. Called by: the GGUF loader's `iter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core_loaders.gguf.placement import JOINT
from core_loaders.gguf.projectors.attach import row_of_config
from core_loaders.rotary_rows import half_split
from core_runtime.specs.checkpoint import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

PAIRED = (".q_proj.", ".k_proj.")


def tower_tensor(info: TensorInfo, config: Mapping[str, Any], read: Callable[[str], Tensor]) -> Tensor:
    """Return one tensor in `info.shape`.

    config: that `attach` made. read: returns a tensor of the file by its own name, unpacked.
    """
    row = row_of_config(config)
    parts = [read(name) for name in info.source.split(JOINT)]
    whole = parts[0] if len(parts) == 1 else _joined(parts)
    if info.source in row.norm_offset:
        whole = whole.float() - 1.0
    if row.paired and any(part in info.name for part in PAIRED):
        whole = half_split(whole, config["vision_config"]["num_attention_heads"])
    return whole.reshape(info.shape)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    import torch

    kind = torch.float32 if len({part.dtype for part in parts}) > 1 else parts[0].dtype
    same = [part.to(kind) for part in parts]
    return torch.stack(same, dim=2) if same[0].dim() > 2 else torch.cat(same)
