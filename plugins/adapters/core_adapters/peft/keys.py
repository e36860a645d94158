"""The keys of peft's `LoraConfig`, one row each: used, neutral, or refused.

Owns: the table, and the check of a configuration against it. Never does: compute with a value. Called by: the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from core.api.errors import UserError, nearest


@dataclass(frozen=True, slots=True)
class Key:
    """A key of `adapter_config.json`.

    use: `used`: the reading depends on it. `neutral`: it changes no answer. `refused`: only the values of `unless` are served.
    reason: why it is neutral, or what a refused value would need.
    values: all that peft takes; empty: others too.
    """

    name: str
    use: Literal["used", "neutral", "refused"]
    reason: str = ""
    unless: tuple[Any, ...] = (None, False, [], {})
    values: tuple[Any, ...] = ()


INITIAL: Final = ("gaussian", "eva", "orthogonal", "mica")
"""Values of `init_lora_weights` that leave the base model as it is."""
CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of `init_lora_weights` that changed the base model before training."""
SAME_FORWARD: Final = "it changes training alone"
TASKS: Final = ("SEQ_CLS", "SEQ_2_SEQ_LM", "CAUSAL_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")

KEYS: Final = (
    Key("peft_type", "used"),
    Key("r", "used"),
    Key("lora_alpha", "used"),
    Key("rank_pattern", "used"),
    Key("alpha_pattern", "used"),
    Key("use_rslora", "used"),
    Key("use_dora", "used"),
    Key("bias", "used", values=("none", "all", "lora_only")),
    Key("lora_bias", "used"),
    Key("modules_to_save", "used"),
    Key("trainable_token_indices", "used"),
    Key("target_parameters", "used"),
    Key("alora_invocation_tokens", "used"),
    Key("init_lora_weights", "used", values=(None, True, False, *INITIAL)),
    Key("target_modules", "used"),
    Key("exclude_modules", "used"),
    Key("layers_to_transform", "used"),
    Key("layers_pattern", "used"),
    Key("fan_in_fan_out", "neutral", "A and B are stored by inputs and outputs, however the base stores its matrix"),
    Key("lora_dropout", "neutral", SAME_FORWARD),
    Key("megatron_config", "neutral", SAME_FORWARD),
    Key("megatron_core", "neutral", SAME_FORWARD),
    Key("loftq_config", "neutral", "init_lora_weights says whether it was used"),
    Key("eva_config", "neutral", "it chose the first A, and left the base as it is"),
    Key("corda_config", "neutral", "init_lora_weights says whether it was used"),
    Key("lora_ga_config", "neutral", "init_lora_weights says whether it was used"),
    Key("velora_config", "neutral", SAME_FORWARD),
    Key("runtime_config", "neutral", "it chose where peft kept its weights"),
    Key("ensure_weight_tying", "used"),
    Key("qalora_group_size", "neutral", "use_qalora says whether it was used"),
    Key("base_model_name_or_path", "neutral", "the shapes say whether the adapter fits"),
    Key("revision", "neutral", "the shapes say whether the adapter fits"),
    Key("task_type", "neutral", "the route of a request says what is asked", values=(None, *TASKS)),
    Key("inference_mode", "neutral", SAME_FORWARD),
    Key("auto_mapping", "neutral", "it names classes of peft and transformers"),
    Key("peft_version", "neutral", "the format has not changed"),
    Key(
        "layer_replication",
        "refused",
        "the base would need its layers several times; merge the adapter and serve the result",
    ),
    Key("use_qalora", "refused", "its A reads means of groups of inputs; merge the adapter and serve the result"),
    Key("use_bdlora", "refused", "its matrices are block-diagonal; merge the adapter and serve the result"),
    Key("arrow_config", "refused", "it mixes several adapters by token, which is not served"),
    Key("kasa_config", "refused", "it also truncates the base's matrices; merge the adapter and serve the result"),
    Key("monteclora_config", "refused", "its A is drawn anew for each call, so answers would not be reproducible"),
)
"""All keys of peft 0.21.2's `LoraConfig`, and those of its parent classes that it writes."""


def check_keys(path: str, config: Mapping[str, Any]) -> None:
    """Check every key of a configuration. Raises UserError for the first that cannot be served."""
    known = {key.name: key for key in KEYS}
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UserError(f"{path}: peft_type is {kind!r}; adapters of type 'LORA' are served.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise UserError(
            f"{path}: init_lora_weights is '{start}', which changed the base model before training, so on the plain base the "
            "answers would be wrong; save it with peft's save_pretrained(..., path_initial_model_for_weight_conversion=...), "
            "which makes it an adapter of the plain base."
        )
    for name, value in config.items():
        key = known.get(name)
        if key is None:
            raise UserError(
                f"{path}: the key '{name}' is unknown, so the answers could be wrong.{nearest(name, known)}"
            )
        if key.use == "refused" and value not in key.unless:
            raise UserError(f"{path}: {name} is not served: {key.reason}.")
        if key.values and value not in key.values:
            known_values = ", ".join(str(one) for one in key.values if one is not None)
            raise UserError(f"{path}: {name} is {value!r:.60}, expected one of {known_values}.")
    dropout = config.get("lora_dropout", 0)
    if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise UserError(f"{path}: lora_dropout is {dropout!r:.60}, expected a number from 0 to 1.")
