"""Classification heads: their layout in each architecture, as data, and their shape from a configuration. Torch-free.

Owns: the vocabulary of these rows, the rows that families share, and the reading of a configuration. Never does: hold
weights, pool.
Called by: rows, the table of families.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.api.pooling import PoolingKind
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.mixer_parts import NormTensor
from core_runtime.specs.pooling_head import HeadLayer, PoolingHead

SEQUENCE: Final = "ForSequenceClassification"
TOKEN: Final = "ForTokenClassification"
REWARD: Final = "ForRewardModel"
PROCESS: Final = "ForProcessRewardModel"
RANKING: Final = "ForRanking"
ENDINGS: Final = (SEQUENCE, TOKEN, REWARD, PROCESS, RANKING)
"""Endings of the names of architectures that have such a head."""
USUAL_LABELS: Final[Mapping[str, int]] = MappingProxyType({REWARD: 1, RANKING: 1})
"""Ending → number of classes of a configuration that names none; published code has it in place of the configuration. 2 for
others.
"""
FROM_TOKENS: Final = "classifier_from_token"
"""Key of a configuration with which rows of the language model head serve as classes."""
ACTIVATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "tanh": "tanh",
    }
)
"""Names of activations in configurations → names in `HeadLayer`."""
POOLINGS: Final[Mapping[str, PoolingKind]] = MappingProxyType({"cls": "cls", "mean": "mean"})
"""Values of a configuration's key for pooling."""


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of a head.

    source: see `HeadLayer`.
    bias: whether the layer has a bias, or the key that says so.
    activation: see `HeadLayer`; `=key: usual` reads it from the configuration.
    norm_source: see `HeadLayer`; the norm is of the family's kind.
    """

    source: str
    bias: bool | str = True
    activation: str = ""
    norm_source: str = ""


class HeadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A classification head. kind: see `PoolingHead`; None: read from the key `classifier_pooling`. layers: all but the
    last keep the size.
    """

    kind: PoolingKind | None
    layers: tuple[LayerRow, ...]


Heads = Mapping[str, HeadRow]
"""Heads by the ending of the architecture's name."""

TWO_LAYERS: Final = (LayerRow(source=r"score\.0", activation="relu"), LayerRow(source=r"score\.2"))
OF_DECODERS: Final[Heads] = MappingProxyType(
    {
        SEQUENCE: HeadRow(kind="last", layers=(LayerRow(source="score", bias=False),)),
        TOKEN: HeadRow(kind="all", layers=(LayerRow(source="score|classifier"),)),
        REWARD: HeadRow(kind="all", layers=TWO_LAYERS),
        PROCESS: HeadRow(kind="all", layers=TWO_LAYERS),
        RANKING: HeadRow(kind="last", layers=TWO_LAYERS),
    }
)
OF_INTERNLM2: Final[Heads] = MappingProxyType(
    {**OF_DECODERS, REWARD: HeadRow(kind="all", layers=(LayerRow(source="v_head", bias=False),))}
)
OF_BERT: Final[Heads] = MappingProxyType(
    {
        SEQUENCE: HeadRow(
            kind="cls",
            layers=(LayerRow(source=r"(?:bert\.)?pooler\.dense", activation="tanh"), LayerRow(source="classifier")),
        ),
        TOKEN: HeadRow(kind="all", layers=(LayerRow(source="classifier"),)),
    }
)
OF_ROBERTA: Final[Heads] = MappingProxyType(
    {
        SEQUENCE: HeadRow(
            kind="cls",
            layers=(
                LayerRow(source=r"classifier\.dense", activation="tanh"),
                LayerRow(source=r"classifier\.out_proj"),
            ),
        ),
        TOKEN: HeadRow(kind="all", layers=(LayerRow(source="classifier"),)),
    }
)
OF_DISTILBERT: Final[Heads] = MappingProxyType(
    {
        SEQUENCE: HeadRow(
            kind="cls", layers=(LayerRow(source="pre_classifier", activation="relu"), LayerRow(source="classifier"))
        ),
        TOKEN: HeadRow(kind="all", layers=(LayerRow(source="classifier"),)),
    }
)
_MODERN_LAYERS: Final = (
    LayerRow(
        source=r"head\.dense",
        bias="classifier_bias",
        activation="=classifier_activation: gelu",
        norm_source=r"head\.norm",
    ),
    LayerRow(source="classifier"),
)
OF_MODERNBERT: Final[Heads] = MappingProxyType(
    {SEQUENCE: HeadRow(kind=None, layers=_MODERN_LAYERS), TOKEN: HeadRow(kind="all", layers=_MODERN_LAYERS)}
)


def ending_of(hf_config: Mapping[str, Any]) -> str:
    """Return the ending of the architecture's name, one of `ENDINGS`; empty for a model without such a head."""
    for name in hf_config.get("architectures") or ():
        for ending in ENDINGS:
            if str(name).endswith(ending):
                return ending
    return ""


def class_head(hf_config: Mapping[str, Any], heads: Heads, spec: DecoderSpec) -> PoolingHead | None:
    """Return the head of a classification model, None for any other model. Raises UserError for a head that no row
    describes.

    hf_config: configuration of the text model. heads: heads of the model's family. spec: the model without its head.
    """
    ending = ending_of(hf_config)
    if not ending or hf_config.get(FROM_TOKENS):
        return None
    row = heads.get(ending)
    if row is None:
        known = ", ".join(heads) or "none"
        raise UserError(
            f"The architecture is {list(hf_config['architectures'])}, but of {spec.family} models the heads of {known} are "
            "served. Name the model without its head for vectors: --hf-overrides.architectures."
        )
    config = configuration(hf_config)
    sizes = [spec.hidden_size] * len(row.layers) + [num_labels(hf_config)]
    layers = []
    for index, layer in enumerate(row.layers):
        name = f"classes.{index}"
        norm = None
        if layer.norm_source:
            norm = NormTensor(f"{name}.norm", (sizes[index + 1],), spec.norm)
        layers.append(
            HeadLayer(
                name=name,
                shape=(sizes[index + 1], sizes[index]),
                bias=_bias(layer, config),
                activation=_activation(layer, config),
                norm=norm,
                source=layer.source,
                norm_source=layer.norm_source,
            )
        )
    told: PoolingKind = config.choice("classifier_pooling", POOLINGS, "cls")
    kind = told if row.kind is None else row.kind
    return PoolingHead(kind=kind, layers=tuple(layers))


def labels_of(hf_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes, by number. Where the configuration names none, they are named as in
    transformers.
    """
    count = num_labels(hf_config)
    named = hf_config.get("id2label")
    if not isinstance(named, Mapping):
        named = {}
    found = []
    for index in range(count):
        found.append(str(named.get(str(index), f"LABEL_{index}")))
    return tuple(found)


def num_labels(hf_config: Mapping[str, Any]) -> int:
    """Return the number of classes: the number of names, else `num_labels`, else what is usual. Raises UserError."""
    named = hf_config.get("id2label")
    if isinstance(named, Mapping) and named:
        return len(named)
    return configuration(hf_config).positive("num_labels", USUAL_LABELS.get(ending_of(hf_config), 2))


def _bias(row: LayerRow, config: Configuration) -> bool:
    return row.bias if isinstance(row.bias, bool) else config.flag(row.bias)


def _activation(row: LayerRow, config: Configuration) -> str:
    if not row.activation.startswith("="):
        return row.activation
    key, _, usual = row.activation[1:].partition(": ")
    return config.choice(key, ACTIVATIONS, usual)
