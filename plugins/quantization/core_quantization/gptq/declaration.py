"""The declaration of a GPTQ checkpoint: its keys, and the scheme of each module. Torch-free.

Owns: the lists of used and neutral keys, with reasons. Never does: look at a tensor. Called by: the manifest. Sources:
AutoGPTQ's `quantize_config.json`, GPTQModel's `QuantizeConfig`, transformers' `GPTQConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from core_quantization.declared.neutral import NEUTRAL_OF_TOOLS
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at, whole_at

BITS: Final = (2, 3, 4, 8)
FORMATS: Final = {"gptq": True, "gptq_v2": False}
"""Checkpoint formats → whether their zero points are stored minus one."""
TILES: Final = ("marlin", "marlin_24", "qqq")
"""Checkpoint formats of symmetric integers in tiles, which the tensors of a module distinguish."""
METHODS_OF_TILES: Final = {"marlin": "marlin", "gptq_marlin_24": "marlin_24", "qqq": "qqq"}
"""Name of a method in a declaration → its format."""
USED: Final = (
    "act_bits",
    "bits",
    "checkpoint_format",
    "data_type",
    "desc_act",
    "dynamic",
    "format",
    "group_size",
    "is_marlin_format",
    "method",
    "pack_dtype",
    "quant_method",
    "static_groups",
    "sym",
    "wbits",
    "adapter",
    "rotation",
)
BITS_OF_TILES: Final = 4
OVERRIDES: Final = ("bits", "desc_act", "group_size", "sym")
"""Keys that `dynamic` may change for some modules. Other keys there are neutral, as at the top."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The packing of one kind of modules.

    bits: bits of an integer.
    group_size: inputs that share a scale; -1: all.
    sym: whether every zero point is the middle of the range.
    desc_act: whether groups may consist of inputs that are not adjacent.
    """

    bits: int
    group_size: int
    sym: bool
    desc_act: bool

    @classmethod
    def read(cls, where: str, found: Mapping[str, Any]) -> Self:
        """Return the scheme in a mapping. where: its place in the declaration, for messages. Raises Refusal."""
        bits = whole_at(f"{where}bits", found.get("bits", found.get("wbits")))
        if bits not in BITS:
            raise Refusal(f"{where}bits", "2, 3, 4 or 8", bits, "quantize the model again with one of these")
        group_size = whole_at(f"{where}group_size", found.get("group_size"))
        if group_size != -1 and group_size < 1:
            raise Refusal(f"{where}group_size", "-1 or a number from 1", group_size)
        return cls(bits, group_size, found.get("sym") is not False, found.get("desc_act") is True)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A GPTQ checkpoint's declaration.

    scheme: scheme of all modules without an override.
    minus_one: whether zero points are stored minus one.
    overrides: patterns with their schemes, in order; None: these modules are plain.
    tiles: format of integers in tiles; empty: there are none.
    """

    scheme: Scheme
    minus_one: bool
    overrides: tuple[tuple[re.Pattern[str], Scheme | None], ...] = ()
    tiles: str = ""

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Return the checked declaration. Raises Refusal with the key that is not served."""
        known_keys("", found, USED, NEUTRAL_OF_TOOLS)
        _refuse_what_is_not_served(found)
        whole = dict(found)
        tiles = _tiles(found)
        if tiles:
            whole.setdefault("bits", found.get("wbits", BITS_OF_TILES))
        whole["desc_act"] = bool(found.get("desc_act")) and not _static_groups(found)
        scheme = Scheme.read("", whole)
        overrides = []
        for sign, changes in mapping_at("dynamic", found.get("dynamic") or {}).items():
            overrides.append(_override(sign, changes, whole))
        if tiles and not scheme.sym:
            raise Refusal(
                "sym", f"true for the format {tiles}", False, "serve the GPTQ checkpoint that it was made from"
            )
        form = found.get("checkpoint_format") or found.get("format") or "gptq"
        return cls(scheme, FORMATS.get(form, True), tuple(overrides), tiles)

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of a module; None: it is plain. module: its name in the checkpoint."""
        for pattern, scheme in self.overrides:
            if pattern.match(module):
                return scheme
        return self.scheme


def _refuse_what_is_not_served(found: Mapping[str, Any]) -> None:
    again = "serve the GPTQ checkpoint that it was made from"
    for key, wanted in (("data_type", "int"), ("act_bits", 16)):
        if found.get(key) not in (None, wanted):
            raise Refusal(key, str(wanted), found[key], "export the checkpoint again in the format llm_compressor")
    for key in ("checkpoint_format", "format"):
        form = found.get(key)
        if form is not None and form not in (*FORMATS, *TILES):
            raise Refusal(key, " or ".join((*FORMATS, *TILES)), form, again)
    pack_dtype = found.get("pack_dtype") or "int32"
    if str(pack_dtype).removeprefix("torch.") != "int32":
        raise Refusal("pack_dtype", "int32", pack_dtype, "pack the checkpoint again with int32")
    if found.get("rotation"):
        raise Refusal("rotation", "none", found["rotation"], "quantize the model again without it")
    if found.get("adapter"):
        raise Refusal("adapter", "none", "an adapter that corrects the weights", "quantize the model again without it")


def _tiles(found: Mapping[str, Any]) -> str:
    """Return the format of integers in tiles; empty: they lie in words."""
    by_method = METHODS_OF_TILES.get(str(found.get("quant_method")).lower(), "")
    named = found.get("checkpoint_format") or found.get("format") or by_method
    if found.get("is_marlin_format") and named not in TILES:
        return "marlin"
    return str(named) if named in TILES else by_method


def _static_groups(found: Mapping[str, Any]) -> bool:
    """Whether groups are adjacent although columns were quantized in another order."""
    meta = found.get("meta")
    noted = meta.get("static_groups") if isinstance(meta, Mapping) else None
    return bool(found.get("static_groups") or noted)


def _override(sign: str, changes: object, whole: Mapping[str, Any]) -> tuple[re.Pattern[str], Scheme | None]:
    """Return one entry of `dynamic` as a pattern and its scheme. whole: the declaration."""
    where = f"dynamic.{sign}"
    try:
        pattern = re.compile(sign.removeprefix("-:").removeprefix("+:"))
    except re.error as error:
        raise Refusal(where, "a regular expression", sign, str(error)) from None
    if sign.startswith("-:"):
        return pattern, None
    own = mapping_at(where, changes)
    known_keys(where, own, OVERRIDES, NEUTRAL_OF_TOOLS)
    return pattern, Scheme.read(f"{where}.", {**whole, **own})
