"""The architectures that rows are tested against: model type and variant → a tiny configuration of transformers.

Owns: how the common values, the table's changes and a wrapper become one configuration. Never does: make weights.
Called by: the oracle, the tests, the command line.
"""

from collections.abc import Iterator
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from tests.families.common import sizes_for, values_for
from tests.families.dense import DENSE
from tests.families.early import EARLY
from tests.families.encoders import ENCODERS
from tests.families.hybrids import HYBRIDS
from tests.families.mixtures import MIXTURES
from tests.families.wrappers import VISION, WRAPPED_TEXT, WRAPPERS

DECODERS = {**DENSE, **MIXTURES, **HYBRIDS, **EARLY}
USUAL = "usual"
"""The variant of every decoder and encoder whose configuration has nothing but its sizes: all else takes its default."""
ALL = {**DECODERS, **ENCODERS, **WRAPPED_TEXT}


def variants(model_type: str) -> list[str]:
    """The names of an architecture's variants, the usual one first; none for an unknown one."""
    if model_type in WRAPPERS:
        return ["plain"]
    if model_type in WRAPPED_TEXT:  # its wrapper is compared
        return []
    known = list(ALL.get(model_type, {}))
    return [*known, USUAL] if known else []


def everything() -> Iterator[tuple[str, str]]:
    """Each architecture that can be run by itself, with each of its variants."""
    for model_type in [*DECODERS, *ENCODERS, *WRAPPERS]:
        for variant in variants(model_type):
            yield model_type, variant


def tiny_values(model_type: str, variant: str = "plain") -> dict[str, Any]:
    """What the configuration is made from: JSON that says which configuration this is."""
    if model_type in WRAPPERS:
        return _wrapper_values(model_type)
    if variant == USUAL:
        sizes = sizes_for(_defaults(model_type))
        return {**sizes, **_sizes_of(ALL[model_type]["plain"])}
    values = values_for(_defaults(model_type))
    changes = dict(ALL[model_type][variant])
    return {**values, **changes}


def tiny_config(model_type: str, variant: str = "plain") -> PreTrainedConfig:
    """The configuration, as transformers understands it."""
    return CONFIG_MAPPING[model_type](**tiny_values(model_type, variant))


def told(config: PreTrainedConfig) -> dict[str, Any]:
    """What a configuration says beyond the defaults of its class."""
    defaults = _defaults(config.model_type)
    named = {"model_type", "architectures", "dtype"}
    values = config.to_dict()
    return {key: value for key, value in values.items() if key in named or value != defaults.get(key)}


def _sizes_of(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes without switches and fractions."""
    found = {}
    for key, value in changes.items():
        is_size = isinstance(value, (int, list, dict)) and not isinstance(value, bool)
        if is_size or key == "pad_token_id":
            found[key] = value
    return found


def _wrapper_values(model_type: str) -> dict[str, Any]:
    text_type, variant, changes = WRAPPERS[model_type]
    defaults = _defaults(model_type)
    text = {"model_type": text_type, **tiny_values(text_type, variant)}
    ids = {key: 260 for key in defaults if key.endswith(("_token_id", "_token_index"))}
    vision_defaults = defaults["vision_config"]
    if vision_defaults is None:  # the text alone is a model, too
        return {"text_config": text, **ids}
    vision = {key: value for key, value in VISION.items() if key in vision_defaults}
    vision |= {"model_type": vision_defaults["model_type"], **changes}
    return {"text_config": text, "vision_config": vision, **ids}


def _defaults(model_type: str) -> dict[str, Any]:
    """A class's own values, those of parts included."""
    try:
        config = CONFIG_MAPPING[model_type]()
    except ValueError:  # the defaults of some contradict each other
        return dict(vars(CONFIG_MAPPING[model_type]))
    return config.to_dict()
