"""The declaration of an AutoRound checkpoint: its keys, the layout, and the scheme of each module. Torch-free.

Owns: the lists of used and neutral keys, with reasons. Never does: look at a tensor. Called by: the manifest, the
method. Source: auto-round's `QuantizationScheme` and `save_quantized_as_autoround`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from core_quantization.declared.neutral import NEUTRAL_OF_TOOLS
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at
from core_quantization.gptq.declaration import Scheme

PLAIN_BITS: Final = 16
"""Modules of at least this many bits are not packed."""
USED: Final = (
    "act_bits",
    "bits",
    "data_type",
    "extra_config",
    "group_size",
    "packing_format",
    "quant_method",
    "rotation_config",
    "rotation_configs",
    "super_bits",
    "sym",
)
NEUTRAL: Final = {
    **NEUTRAL_OF_TOOLS,
    "static_attention_granularity": "static_attention_dtype says whether attention is quantized",
    "static_kv_granularity": "static_kv_dtype says whether the cache is quantized",
    "super_group_size": "super_bits says whether there are groups of groups",
}


@dataclass(frozen=True, slots=True)
class Packing:
    """A packing format.

    layout: method whose layout it is.
    minus_one: whether zero points are stored minus one (layout gptq).
    """

    layout: Literal["gptq", "awq"]
    minus_one: bool = False


PACKINGS: Final = {
    "auto_round": Packing("gptq"),
    "auto_round:auto_awq": Packing("awq"),
    "auto_round:auto_gptq": Packing("gptq", minus_one=True),
    "auto_round:awq": Packing("awq"),
    "auto_round:exllamav2": Packing("gptq"),
    "auto_round:gptq": Packing("gptq", minus_one=True),
    "auto_round:gptqmodel": Packing("gptq"),
    "auto_round:tritonv2": Packing("gptq"),
}
"""Packing formats by name. The first versions of the tool used names of kernels."""
USUAL: Final = "auto_round:gptq"
"""The packing format of a checkpoint that names none, as in transformers."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """An AutoRound checkpoint's declaration.

    packing: packing format of all modules.
    scheme: scheme of all modules without one of their own.
    schemes: own schemes: a module's name, the same as a regular expression, and the scheme; None: plain.
    """

    packing: Packing
    scheme: Scheme
    schemes: tuple[tuple[str, re.Pattern[str], Scheme | None], ...] = ()

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Return the checked declaration. Raises Refusal with the key that is not served."""
        known_keys("", found, USED, NEUTRAL)
        named = found.get("packing_format") or USUAL
        packing = PACKINGS.get(named)
        if packing is None:
            raise Refusal("packing_format", ", ".join(PACKINGS), named, "export the checkpoint again in one of these")
        scheme = _scheme("", found)
        if scheme is None:
            raise Refusal(
                "bits", "fewer than 16 bits", found.get("bits"), "remove the declaration of a plain checkpoint"
            )
        own = []
        for name, changes in mapping_at("extra_config", found.get("extra_config") or {}).items():
            where = f"extra_config.{name}"
            mine = mapping_at(where, changes)
            known_keys(where, mine, USED, NEUTRAL)
            own.append((name, _pattern(where, name), _scheme(f"{where}.", {**found, **mine})))
        declaration = cls(packing, scheme, tuple(own))
        declaration._check_bits()
        return declaration

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of a module; None: it is plain. module: its name in the checkpoint."""
        for name, _, scheme in self.schemes:
            if name == module:
                return scheme
        for _, pattern, scheme in self.schemes:
            if pattern.fullmatch(module):
                return scheme
        return self.scheme

    def _check_bits(self) -> None:
        """Raise Refusal for a number of bits that the layout does not support."""
        schemes = [self.scheme, *(scheme for _, _, scheme in self.schemes)]
        for scheme in schemes:
            if self.packing.layout == "awq" and scheme is not None and scheme.bits != 4:
                raise Refusal("bits", "4 in packing_format auto_round:auto_awq", scheme.bits, "export it as auto_round")


def _scheme(where: str, found: Mapping[str, Any]) -> Scheme | None:
    """Return one scheme; None: plain. where: its place in the declaration. Raises Refusal."""
    bits = found.get("bits")
    if isinstance(bits, int) and bits >= PLAIN_BITS:
        return None
    data_type = found.get("data_type") or "int"
    if data_type != "int":
        again = "export the checkpoint again in the format llm_compressor"
        raise Refusal(f"{where}data_type", "int", data_type, again)
    act_bits = found.get("act_bits") or PLAIN_BITS
    if act_bits < PLAIN_BITS:
        raise Refusal(f"{where}act_bits", "16", act_bits, "export the checkpoint again in the format llm_compressor")
    for key in ("super_bits", "rotation_config", "rotation_configs"):
        if found.get(key):
            raise Refusal(f"{where}{key}", "none", found[key], "quantize the model again without it")
    return Scheme.read(where, found)


def _pattern(where: str, name: str) -> re.Pattern[str]:
    try:
        return re.compile(name)
    except re.error as error:
        raise Refusal(where, "a module's name or a regular expression", name, str(error)) from None
