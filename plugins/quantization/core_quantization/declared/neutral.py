"""Keys without effect on weights that tools for integers in groups write into their declarations.

Owns: this table, with the reasons. Never does: decide for a method that uses such a key (the method lists it as used).
Called by: declarations of GPTQ, AWQ and AutoRound, whose tools write each other's formats. Torch-free.
"""

from __future__ import annotations

from typing import Final

_CALIBRATION: Final = "it is about how the weights were found"
_INPUTS: Final = "inputs have 16 bits or more, as act_bits says"
_KERNELS: Final = "it chooses kernels or modules of another engine"
_TENSORS: Final = "the tensors say which modules are packed"
_TOOL: Final = "it says which tool wrote the checkpoint"

NEUTRAL_OF_TOOLS: Final = {
    "_attn_implementation_autoset": _KERNELS,
    "act_data_type": _INPUTS,
    "act_dynamic": _INPUTS,
    "act_group_aware": _CALIBRATION,
    "act_group_size": _INPUTS,
    "act_sym": _INPUTS,
    "amp": _CALIBRATION,
    "autoround_version": _TOOL,
    "backend": _KERNELS,
    "batch_size": _CALIBRATION,
    "block_name_to_quantize": _TENSORS,
    "cache_block_outputs": _CALIBRATION,
    "cache_examples_on_gpu": _CALIBRATION,
    "damp_auto_increment": _CALIBRATION,
    "damp_percent": _CALIBRATION,
    "dataset": _CALIBRATION,
    "disable_exllama": _KERNELS,
    "enable_alg_ext": _CALIBRATION,
    "enable_minmax_tuning": _CALIBRATION,
    "enable_norm_bias_tuning": _CALIBRATION,
    "enable_quanted_input": _CALIBRATION,
    "exllama_config": _KERNELS,
    "gradient_accumulate_steps": _CALIBRATION,
    "group_aware": _CALIBRATION,
    "hyb_act": _CALIBRATION,
    "in_blocks": _TENSORS,
    "inject_fused_attention": _KERNELS,
    "inject_fused_mlp": _KERNELS,
    "iters": _CALIBRATION,
    "lm_head": _TENSORS,
    "low_gpu_mem_usage": _CALIBRATION,
    "lr": _CALIBRATION,
    "max_input_length": _KERNELS,
    "meta": _TOOL,
    "minmax_lr": _CALIBRATION,
    "model_file_base_name": "the files are found by their names",
    "model_name_or_path": "it names the model that the weights are of",
    "model_seqlen": _CALIBRATION,
    "module_name_preceding_first_block": _CALIBRATION,
    "modules_in_block_to_quantize": _TENSORS,
    "mse": _CALIBRATION,
    "nsamples": _CALIBRATION,
    "pad_token_id": _CALIBRATION,
    "provider": _TOOL,
    "quant_block_list": _TENSORS,
    "scale_dtype": "the type of the scales is that of the file",
    "seqlen": _CALIBRATION,
    "supported_types": _TENSORS,
    "to_quant_block_names": _TENSORS,
    "tokenizer": _CALIBRATION,
    "true_sequential": _CALIBRATION,
    "use_cuda_fp16": _KERNELS,
    "use_exllama": _KERNELS,
    "v2": _CALIBRATION,
}
