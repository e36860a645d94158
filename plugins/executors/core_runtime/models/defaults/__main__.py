"""Write the defaults of transformers' configuration classes as data: `python -m core_runtime.models.defaults`.

Owns: the choice of classes, and of the fields of each. Never does: run at serving time. Called by: a developer, after
an update of transformers; `read_class` also by the test that compares data and classes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, Final

import msgspec
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from core_runtime.models.defaults import DIRECTORY, OLD_ROPE_KEYS, RELEASE, Defaults

ENCODERS: Final = (
    *("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "distilbert", "gte", "jina_embeddings_v3"),
)
OTHERS: Final = ("mistral4",)
"""Decoders that transformers lists among models of pictures alone."""
KEYWORD: Final = re.compile(r"""kwargs\.(?:get|pop|setdefault)\(\s*["'](\w+)["']""")
FILLED_IN: Final = re.compile(r"""kwargs\.setdefault\(\s*["'](\w+)["'],\s*([\d.]+)\s*\)""")
ASKED_FOR: Final = re.compile(r"""getattr\(\s*(?:self\.)?(?:text_)?config,\s*["'](\w+)["']""")
LIST: Final = re.compile(r"\[([^\[\]{}]*)\]")
WIDTH: Final = 100
MENTIONED: Final = re.compile(r"""\.(\w+)|["'](\w+)["']""")
ELSEWHERE: Final = frozenset(
    (
        *("max_position_embeddings", "original_max_position_embeddings", "partial_rotary_factor", "rope_parameters"),
        *("rope_scaling", "rope_theta", "tie_word_embeddings", "num_hidden_layers", "layer_types"),
    )
)
"""Keys that the transformers library reads for every model."""
COMMON: Final = frozenset(field.name for field in dataclasses.fields(PreTrainedConfig))


def config_classes() -> dict[str, type[PreTrainedConfig]]:
    """Return model type → class, for text models, the text part of wrappers, and encoders."""
    found: dict[str, type[PreTrainedConfig]] = {}
    for model_type in (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *ENCODERS, *OTHERS):
        if model_type in CONFIG_MAPPING:
            found[model_type] = CONFIG_MAPPING[model_type]
    for wrapper in (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        text = CONFIG_MAPPING[wrapper].sub_configs.get("text_config")
        model_type = getattr(text, "model_type", "")
        if model_type:
            found[model_type] = text
    return found


def read_class(config_class: type[PreTrainedConfig]) -> Defaults:
    """Return the defaults of a class, read from the class itself. An instance would have computed values besides."""
    defaults: dict[str, Any] = {}
    attribute_map = dict(config_class.attribute_map)
    keys = {*attribute_map, *attribute_map.values()}
    for field in dataclasses.fields(config_class):
        if field.name in COMMON:
            continue
        keys.add(field.name)
        value = _default(field)
        if value is not None:
            defaults[field.name] = value
    source = _own_source(config_class)
    model_source = _model_source(config_class)
    keys.update(KEYWORD.findall(source))
    keys.update(ASKED_FOR.findall(model_source))
    keys.difference_update(COMMON)
    for name, number in FILLED_IN.findall(source):
        defaults.setdefault(name, float(number))
    theta = None
    implied = {*defaults, *attribute_map, *attribute_map.values()}
    if "rope_parameters" in keys:
        keys.update(OLD_ROPE_KEYS)
        implied.update(OLD_ROPE_KEYS)
        theta = config_class.default_theta
    return Defaults(
        attribute_map=attribute_map,
        defaults=dict(sorted(defaults.items())),
        other_keys=tuple(sorted(keys - implied)),
        unused=tuple(sorted(keys - ELSEWHERE - _mentioned(source + model_source))),
        theta=theta,
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field as a JSON value; None where there is none or it is another configuration."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except TypeError:
        return None


def _own_source(config_class: type) -> str:
    """Return the source of a class and of its base classes, up to what all configurations share."""
    sources: list[str] = []
    for one in config_class.__mro__:
        if one is PreTrainedConfig:
            break
        sources.append(inspect.getsource(one))
    return "\n".join(sources)


def _model_source(config_class: type) -> str:
    """Return the source of the models that lie next to a configuration."""
    path = Path(inspect.getfile(config_class))
    models = sorted(path.parent.glob("modeling_*.py"))
    if not models:  # a configuration for another family's model
        name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(getattr(config_class, "model_type", ""))
        if name is not None:
            models.append(Path(inspect.getfile(getattr(transformers, name))))
    return "\n".join(model.read_text(encoding="utf-8") for model in models)


def _mentioned(source: str) -> set[str]:
    """Return the names that a source may read from a configuration: all attributes and quoted words."""
    found: set[str] = set()
    for attribute, quoted in MENTIONED.findall(source):
        found.add(attribute or quoted)
    return found


def text_of(found: Defaults) -> str:
    """Return the text of a file: a line for each key with a default, and filled lines for lists."""
    text = msgspec.json.format(msgspec.json.encode(found).decode(), indent=1)
    return LIST.sub(_filled, text) + "\n"


def _filled(items: re.Match[str]) -> str:
    one_line = " ".join(items[1].split())
    return textwrap.fill(f"[{one_line}]", WIDTH, subsequent_indent="  ")


def main() -> None:
    """Write one file a model type, and remove the files of types that no longer exist."""
    classes = config_classes()
    for path in DIRECTORY.glob("*.json"):
        if path.stem not in classes:
            path.unlink()
    for model_type, config_class in sorted(classes.items()):
        (DIRECTORY / f"{model_type}.json").write_text(text_of(read_class(config_class)))
    RELEASE.write_text(f"{transformers.__version__}\n")
    print(f"{len(classes)} model types of transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
