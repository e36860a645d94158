"""Storage types of the layers of one KV cache.

Owns: the choice of layers that keep the precision of the model (`--kv-cache-dtype-skip-layers`), the type of states, and the
name of all types.
Never does: count bytes, allocate. Called by: the configuration, the worker (its numerics).
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import ConfigError
from core.api.specs import STATE_DTYPE, STATE_TYPES, MixerSpec, StateSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec

WINDOWS = "sliding_window"
FLAG = "--kv-cache-dtype-skip-layers"
CHANCE = ":chance"
"""End of the name of a storage type of states whose numbers are rounded by chance."""


def layer_dtypes(spec: ModelSpec, dtype: str, skipped: Sequence[str], own: str) -> tuple[str, ...]:
    """Return the storage type of each of the model's layers with a cache; empty where all have `dtype`. Raises ConfigError.

    skipped: numbers of layers, or `sliding_window` for all that see a window; these store `own`.
    """
    if not skipped or own == dtype:
        return ()
    numbers = _layer_numbers(spec)
    chosen: set[int] = set()
    for word in skipped:
        found = {index for index, number in enumerate(numbers) if _is_meant(word, number, spec.mixers[index])}
        if not found:
            layers = max(numbers, default=-1) + 1
            problem = (
                f"{FLAG} {word}: the model has no such layer with keys and values; expected numbers from 0 to {layers - 1}, "
                f"or {WINDOWS} for a model with windows."
            )
            raise ConfigError([problem])
        chosen |= found
    for index, lender in spec.lenders.items():
        if index in chosen and lender not in chosen:
            problem = (
                f"{FLAG} {numbers[index]}: the layer reads the keys and values of layer {numbers[lender]}, and stores none; "
                f"expected layers that store some, such as {numbers[lender]}."
            )
            raise ConfigError([problem])
    stored = [spec.lenders.get(index, index) for index in range(len(numbers))]
    return tuple(own if index in chosen else dtype for index in stored)


def _is_meant(word: str, number: int, mixer: MixerSpec) -> bool:
    if isinstance(mixer, StateSpec):
        return False
    return mixer.window is not None if word == WINDOWS else word == str(number)


def _layer_numbers(spec: ModelSpec) -> list[int]:
    """Return the number of the layer in which each mixer is: a layer may have two side by side."""
    if isinstance(spec, DecoderSpec):
        return [spec.first_block + index for index, block in enumerate(spec.blocks) for _ in block.mixers]
    return list(range(len(spec.mixers)))


def kv_name(dtype: str, layer_dtypes: Sequence[str], state_dtype: str = STATE_DTYPE) -> str:
    """Return the storage types in one word: `bfloat16`, or `int8_per_token_head+bfloat16@0,5+states:float16`."""
    others = [(index, other) for index, other in enumerate(layer_dtypes) if other != dtype]
    kept = f"+{others[0][1]}@{','.join(str(index) for index, _ in others)}" if others else ""
    states = "" if state_dtype == STATE_DTYPE else f"+states:{state_dtype}"
    return f"{dtype}{kept}{states}"


def state_dtype(whole: str, recurrent: str, *, by_chance: bool = False) -> str:
    """Return the storage type of states (see `STATE_TYPES`) of the values of both arguments, `auto` among them.

    whole: of the window of a convolution, and of the rest where `recurrent` is `auto`.
    by_chance: whether float16 of the rest is rounded by chance.
    """
    window = STATE_DTYPE if whole == "auto" else whole
    rest = window if recurrent == "auto" else recurrent
    if by_chance and rest + CHANCE in STATE_TYPES:
        rest += CHANCE
    return window if window == rest else f"{window}+{rest}"
