"""The declaration of an AWQ checkpoint. Torch-free.

Owns: the lists of used and neutral keys, with reasons. Never does: look at a tensor. Called by: the manifest, the
method. Sources: AutoAWQ's `AwqConfig` and `quant_config.json`, transformers' `AwqConfig`, GPTQModel's checkpoints of
this method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

from core_quantization.declared.neutral import NEUTRAL_OF_TOOLS
from core_quantization.declared.refusal import Refusal, known_keys, whole_at

BITS: Final = 4
VERSIONS: Final = ("gemm", "gemv")
_SAME: Final = (("bits", "w_bit"), ("group_size", "q_group_size"))
"""Current key, and its name in older checkpoints."""
_VERSION_KEYS: Final = ("version", "checkpoint_format", "format")
USED: Final = (
    "act_bits",
    "adapter",
    "bits",
    "checkpoint_format",
    "data_type",
    "format",
    "group_size",
    "method",
    "pack_dtype",
    "q_group_size",
    "quant_method",
    "rotation",
    "version",
    "w_bit",
)
NEUTRAL: Final = {
    **NEUTRAL_OF_TOOLS,
    "desc_act": "this layout has no order of inputs",
    "do_fuse": "it chooses modules of another engine",
    "dynamic": "the tensors say which modules are packed",
    "fuse_max_seq_len": "it chooses modules of another engine",
    "modules_to_fuse": "it chooses modules of another engine",
    "modules_to_not_convert": "the tensors say which modules are packed",
    "sym": "the zero points are in the file",
    "zero_point": "the zero points are in the file, or there are none",
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """An AWQ checkpoint's declaration.

    group_size: inputs that share a scale; -1: all.
    version: version of the layout.
    """

    group_size: int
    version: Literal["gemm", "gemv"]

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Return the checked declaration. Raises Refusal with the key that is not served."""
        known_keys("", found, USED, NEUTRAL)
        numbers = []
        for key, older in _SAME:
            name = key if key in found else older
            numbers.append((name, whole_at(name, found.get(name))))
        (bits_key, bits), (size_key, group_size) = numbers
        if bits != BITS:
            raise Refusal(bits_key, str(BITS), bits, "its layout is only defined for 4 bits; quantize the model again")
        if group_size != -1 and group_size < 1:
            raise Refusal(size_key, "-1 or a number from 1", group_size)
        for key, wanted in (("data_type", "int"), ("act_bits", 16)):
            if found.get(key) not in (None, wanted):
                raise Refusal(key, str(wanted), found[key], "export the checkpoint again in the format llm_compressor")
        for key in ("rotation", "adapter"):
            if found.get(key):
                raise Refusal(key, "none", found[key], "quantize the model again without it")
        return cls(group_size, _version(found))


def _version(found: Mapping[str, Any]) -> Literal["gemm", "gemv"]:
    for key in _VERSION_KEYS:
        version = found.get(key)
        if version is None:
            continue
        if str(version).lower() not in VERSIONS:
            wanted = " or ".join(VERSIONS)
            raise Refusal(key, wanted, version, "save the checkpoint again with version gemm")
        return cast(Literal["gemm", "gemv"], str(version).lower())
    return "gemm"
