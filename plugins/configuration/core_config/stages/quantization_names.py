"""Names of quantization methods that are not those of plugins: older names, names of other engines, and methods that
cannot be served.

Owns: this table. Never does: know what a plugin can do. Called by: the stages that choose a method.

An installed plugin of exactly that name takes precedence, so that a package can serve a method listed here.
"""

from __future__ import annotations

from typing import Final

from core_config.selection import OtherNames

ALIASES: Final = {
    "auto_gptq": "gptq",
    "awq_marlin": "awq",
    "cpu_awq": "awq",
    "cpu_wna16": "gptq",
    "fbgemm_fp8": "fp8",
    "gptq_bitblas": "gptq",
    "gptq_marlin": "gptq",
    "gptq_marlin_24": "gptq",
    "gptqmodel": "gptq",
    "hqq_marlin": "hqq",
    "inc": "auto-round",
    "intel/auto-round": "auto-round",
    "marlin": "gptq",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
    "moe_wna16": "gptq",
    "petit_nvfp4": "modelopt",
    "ptpc_fp8": "fp8",
    "qqq": "gptq",
    "rtn": "int8",
    "sparseml": "compressed-tensors",
    "tpu_int8": "int8",
}
"""Other name of a method that is served → the method's own name."""
REFUSED: Final = {
    "bitblas": "its weights lie in tiles of one library for GPUs; serve the GPTQ checkpoint that it was made from",
    "deepspeedfp": "it packs weights when the model is loaded by DeepSpeed; use --quantization fp8",
    "neuron_quant": "it is for one vendor's chip; use --quantization int8",
    "squeezellm": "its format was given up by its authors; convert the checkpoint to gptq",
}
"""Method that cannot be served → what to do instead."""
TOOLS: Final = {
    "inc": "use --quantization int8 or --quantization fp8, which round a plain checkpoint",
    "ipex": "leave the argument out, as it names kernels for AWQ and GPTQ checkpoints",
}
"""Name of a tool, which means the method that the checkpoint declares → what to do where it declares none."""
METHOD_NAMES: Final = OtherNames(ALIASES, REFUSED, TOOLS)
