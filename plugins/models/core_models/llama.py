"""Llama, and families that differ from it in a few names only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core_models import fairseq2, hunyuan, lfm2
from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import NEVER, Family, HeadNorm
from core_runtime.models.weight_rules import Ignored, modules

LLAMA3_OF_CWM: Final[dict[str, Any]] = {
    "rope_type": "llama3",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Rotary parameters of CWM for a configuration without `rope_parameters`."""
YARN_OF_MINISTRAL3: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Rotary parameters of Ministral 3 for a configuration without `rope_parameters`."""
SECTIONS: Final = {
    "rope_parameters.mrope_section": "the three positions of a text token are equal",
    "rope_scaling.mrope_section": "the three positions of a text token are equal",
    "rope_parameters.mrope_interleaved": "the three positions of a text token are equal",
    "rope_scaling.mrope_interleaved": "the three positions of a text token are equal",
}


def with_windows(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return SmolLM3's configuration with `layer_types`: with `use_sliding_window`, layers without rotary embedding
    slide.
    """
    config = configuration(hf_config)
    if config.get("layer_types") or not config.flag("use_sliding_window"):
        return config
    interval = config.positive("no_rope_layer_interval", 4)
    numbers = range(1, config.positive("num_hidden_layers") + 1)
    rotates = config.list_of("no_rope_layers", int) or [number % interval for number in numbers]
    kinds = ["full_attention" if one else "sliding_attention" for one in rotates]
    return config.overlaid({"layer_types": kinds})


ROWS = (
    Family(
        name="llama",
        model_types=("llama", "internlm3", "iquestcoder"),
        architectures=(
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "InternLM3ForCausalLM",
            "IQuestCoderForCausalLM",
            "YiForCausalLM",
            "XverseForCausalLM",
            "AquilaForCausalLM",
            fairseq2.ARCHITECTURE,
        ),
        block=fairseq2.neighbours,
        weights=fairseq2.names,
    ),
    Family(
        name="mistral",
        model_types=("mistral", "ministral"),
        architectures=("MistralForCausalLM", "MinistralForCausalLM", "GritLM"),
        wrappers=("mistral3",),
        full_every=NEVER,
    ),
    Family(
        name="ministral3",
        model_types=("ministral3",),
        architectures=("Ministral3ForCausalLM",),
        wrappers=("mistral3",),
        defaults={"rope_parameters": YARN_OF_MINISTRAL3},
        neutral={"rope_parameters.max_position_embeddings": "max_position_embeddings says it"},
        full_every=NEVER,
        temperature="llama_4_scaling_beta",
    ),
    Family(
        name="cwm",
        model_types=("cwm",),
        architectures=("CwmForCausalLM",),
        defaults={"rope_parameters": LLAMA3_OF_CWM},
        first_full=True,
        full_every=4,
    ),
    Family(
        name="qwen2",
        model_types=("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        architectures=("Qwen2ForCausalLM", "MiMoForCausalLM"),
        wrappers=("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker"),
        neutral=SECTIONS,
        weights=(Ignored(r"model\.mtp_layers\..*", "layers that draft, which are not loaded"),),
        windowed="use_sliding_window",
        biases={"query": True, "key": True, "value": True, "out": False},
    ),
    Family(
        name="qwen3",
        model_types=("qwen3", "qwen3_vl_text"),
        architectures=("Qwen3ForCausalLM",),
        wrappers=("qwen3_vl",),
        neutral=SECTIONS,
        windowed="use_sliding_window",
        qk_norm=True,
    ),
    Family(
        name="seed_oss",
        model_types=("seed_oss",),
        architectures=("SeedOssForCausalLM",),
        biases={"out": "attention_out_bias"},
    ),
    Family(
        name="smollm3",
        model_types=("smollm3",),
        architectures=("SmolLM3ForCausalLM",),
        usual=with_windows,
        neutral={"use_sliding_window": "layer_types, beside it, says it"},
        unrotated="list",
    ),
    Family(
        name="helium",
        model_types=("helium",),
        architectures=("HeliumForCausalLM",),
        interleaved=True,
        biases={"out": False},
    ),
    Family(
        name="ernie4_5",
        model_types=("ernie4_5",),
        architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        interleaved=True,
        biases={"query": "use_bias", "key": "use_bias", "value": "use_bias", "out": "use_bias", "mlp": "use_bias"},
    ),
    Family(
        name="bitnet",
        model_types=("bitnet",),
        architectures=("BitNetForCausalLM", "BitnetForCausalLM"),
        inner_norms=True,
        weights=modules(("attn_sub_norm", "out_norm"), ("ffn_sub_norm", "inner_norm")),
    ),
    Family(
        name="hunyuan_v1_dense",
        model_types=("hunyuan_v1_dense",),
        architectures=("HunYuanDenseV1ForCausalLM",),
        usual=hunyuan.with_stretched_base,
        neutral=hunyuan.NEUTRAL,
        qk_norm=HeadNorm(after_rope=True),
        weights=hunyuan.WEIGHTS,
    ),
    Family(
        name="lfm2",
        model_types=("lfm2",),
        architectures=("Lfm2ForCausalLM",),
        neutral=lfm2.NEUTRAL,
        tied_by_default=True,
        qk_norm=True,
        usual=lfm2.usual,
        state=lfm2.state,
        names=lfm2.NAMES,
    ),
)
