"""Metadata keys that describe a model's shape, and the limits of their values.

Owns: the limits of each key, and the keys common to nearly all architectures. Never does: know an architecture.
Called by: `core_loaders.gguf.translate`, rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

MAX_EXTENT: Final = 1 << 24
MAX_LAYERS: Final = 4096
MAX_HEADS: Final = 4096
MAX_HEAD_SIZE: Final = 4096
MAX_EXPERTS: Final = 65_536
LONGEST: Final = 1 << 30


class Kind(NamedTuple):
    """The allowed values of a key: integers or floats from low to high, or (None) booleans."""

    type: type[int] | type[float] | None
    low: float = 0
    high: float = MAX_EXTENT


COUNT: Final = Kind(int)
EXPERTS: Final = Kind(int, 0, MAX_EXPERTS)
EPS: Final = Kind(float, 1e-13, 0.1)
SCALE: Final = Kind(float, 0.0, 1e6)
FLAG: Final = Kind(None)

KINDS: Final[dict[str, Kind]] = {
    "attention.layer_norm_rms_epsilon": EPS,
    "attention.layer_norm_epsilon": EPS,
    "attention.clamp_kqv": SCALE,
    "attention.scale": SCALE,
    "attention.kv_lora_rank": COUNT,
    "attention.q_lora_rank": COUNT,
    "attention.sliding_window": Kind(int, 0, LONGEST),
    "attn_logit_softcapping": SCALE,
    "final_logit_softcapping": SCALE,
    "embedding_scale": SCALE,
    "residual_scale": SCALE,
    "logit_scale": SCALE,
    "expert_count": EXPERTS,
    "expert_used_count": EXPERTS,
    "expert_shared_count": EXPERTS,
    "expert_group_count": EXPERTS,
    "expert_group_used_count": EXPERTS,
    "expert_feed_forward_length": COUNT,
    "expert_shared_feed_forward_length": COUNT,
    "expert_weights_scale": SCALE,
    "expert_weights_norm": FLAG,
    "leading_dense_block_count": Kind(int, 0, MAX_LAYERS),
    "use_parallel_residual": FLAG,
    "rope.freq_base": Kind(float, 1.0, 1e12),
    "rope.freq_base_swa": Kind(float, 1.0, 1e12),
    "shortconv.l_cache": COUNT,
    "ssm.conv_kernel": COUNT,
    "ssm.inner_size": COUNT,
    "ssm.state_size": COUNT,
    "ssm.time_step_rank": COUNT,
    "ssm.group_count": COUNT,
    "ssm.dt_b_c_rms": FLAG,
}

RMS: Final[Mapping[str, str]] = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
"""RMS norm's epsilon, for the `keys` of a row."""
MOE: Final[Mapping[str, str]] = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
REQUIRED: Final = frozenset(
    (
        "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon",
        "attention.kv_lora_rank",
        "shortconv.l_cache",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
    )
)
"""Keys that must be present if the architecture's row lists them; others have a default in the row."""
NONE_IF_ZERO: Final = frozenset(
    (
        "attention.clamp_kqv",
        "attention.scale",
        "embedding_scale",
        "expert_weights_scale",
        "logit_scale",
        "residual_scale",
    )
)
"""Keys for which 0 means that the feature is absent."""
