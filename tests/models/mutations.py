"""Changes of one key of a configuration, and what becomes of the logits: ours and those of transformers.

Owns: the values that a key is changed to, and the comparison. Never does: decide which outcome is good (the test does).
Called by: the mutation test.
"""

import json
import math
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel

from core.api.errors import CoreError
from core_runtime.models.defaults import family_defaults
from core_runtime.models.families import decoder_spec
from tests.families.architectures import ENCODERS
from tests.families.harness import Harness, Piece
from tests.families.oracle import ATTENTION, auto_class, build, logits_of, randomize

TOLERANCE = 2e-4
MOST_PARAMETERS = 2_000_000
ABSENT = "(absent)"
NAMES = {
    "hidden_act": ["relu", "gelu", "no such"],
    "hidden_activation": ["relu", "gelu", "no such"],
    "activation_function": ["relu", "gelu", "no such"],
    "sliding_window": [5],
    "head_dim": [12],
    "topk_method": ["greedy", "group_limited_greedy"],
    "rope_scaling": [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "mscale": 0.5},
    ],
    "rope_theta": [333.0],
    "rope_parameters": [5],
    "attention_dropout": [],
}
"""What these keys are changed to, beside being taken away."""
FOREIGN: dict[str, Any] = {
    "alibi": True,
    "attention_bias": True,
    "attention_multiplier": 0.3,
    "attn_logit_softcapping": 2.0,
    "clip_qkv": 0.5,
    "embedding_multiplier": 2.0,
    "final_logit_softcapping": 2.0,
    "first_k_dense_replace": 1,
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "logit_scale": 0.5,
    "logits_scaling": 2.0,
    "mlp_bias": True,
    "no_rope_layers": [0, 1, 0, 1],
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.5,
    "query_pre_attn_scalar": 3,
    "residual_multiplier": 0.5,
    "rope_interleave": False,
    "rope_local_base_freq": 77.0,
    "rotary_pct": 0.5,
    "routed_scaling_factor": 3.0,
    "scoring_func": "sigmoid",
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
    "use_parallel_residual": True,
    "use_qk_norm": True,
    "use_sliding_window": True,
}
"""Keys of other families, which a row must not listen to unless transformers does."""


class Outcome(NamedTuple):
    """What one change did.

    kind: `equal` (both moved alike), `still` (neither moved), `refused` (by us), `impossible` (transformers cannot either),
        `large` (too large to be compared), `wrong`.
    detail: the difference, or the sentence.
    """

    kind: str
    detail: str


class Subject:
    """One model type with random weights; changes are compared with it."""

    def __init__(self, model_type: str, variant: str = "plain") -> None:
        self.model_type = model_type
        self.model = build(model_type, variant)
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.ids = torch.randint(4, 259, (29,), generator=torch.Generator().manual_seed(3)).tolist()
        with tempfile.TemporaryDirectory() as name:
            self.model.config.save_pretrained(name)
            self.config: dict[str, Any] = json.loads((Path(name) / "config.json").read_text())

    @cached_property
    def logits(self) -> Tensor:
        """Of transformers, without a change."""
        return logits_of(self.model, self.ids)

    def changes(self, most: int = 8) -> Iterator[tuple[str, Any]]:
        """Each key of the class with other values, at most so many of each, and keys of other families."""
        known = family_defaults(self.model_type)
        keys = set(self.config) if known is None else set(known.keys)
        for key, value in FOREIGN.items():
            if key not in keys and key not in self.config:
                yield key, value
        for key in sorted(keys - {"pad_token_id", "vocab_size"}):
            values = list(_other_values(key, self.config.get(key, None if known is None else known.defaults.get(key))))
            if key in self.config:
                values.append(ABSENT)
            for value in values[:most]:
                yield key, value

    def outcome(self, key: str, value: Any) -> Outcome:
        """What changing one key does."""
        config = dict(self.config)
        config.pop(key, None)
        if value != ABSENT:
            config[key] = value
        try:
            spec = decoder_spec(config)
        except CoreError as error:
            return Outcome("refused", str(error))
        size = sum(math.prod(shape) for shape in spec.tensor_shapes().values())
        if size > MOST_PARAMETERS:
            return Outcome("large", f"{size} parameters")
        try:
            model = self._changed_model(config)
            theirs = logits_of(model, self.ids)
        except Exception as error:  # whatever a class or a model of transformers raises
            return Outcome("impossible", repr(error))
        moved = theirs.shape != self.logits.shape or bool((theirs - self.logits).abs().max() > TOLERANCE)
        if not moved and spec == decoder_spec(self.config):
            return Outcome("still", "")
        try:
            ours = self._ours(model, config)
        except CoreError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            return Outcome("wrong", f"our decoder fails: {error!r}")
        difference = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")
        if difference < TOLERANCE:
            return Outcome("equal" if moved else "still", f"{difference:.1e}")
        return Outcome("wrong", f"they {'move' if moved else 'stand still'}, we differ by {difference:.2g}")

    def _changed_model(self, config: dict[str, Any]) -> PreTrainedModel:
        """transformers' model of a configuration, with the subject's weights where the shapes are the same."""
        changed = CONFIG_MAPPING[self.model_type].from_dict(json.loads(json.dumps(config)))
        kind = auto_class(self.model_type)
        torch.manual_seed(11)
        ways = {"attn_implementation": ATTENTION.get(self.model_type, "eager"), "experts_implementation": "eager"}
        model: PreTrainedModel = kind.from_config(changed, dtype=torch.float32, **ways)
        randomize(model)
        own = model.state_dict()
        with torch.no_grad():
            for name, tensor in self.state.items():
                if name in own and own[name].shape == tensor.shape:
                    own[name].copy_(tensor)
        return model.eval()

    def _ours(self, model: PreTrainedModel, config: dict[str, Any]) -> Tensor:
        """Our logits of its checkpoint, whose configuration has the change as a user would write it."""
        with tempfile.TemporaryDirectory() as name:
            model.save_pretrained(name)
            (Path(name) / "config.json").write_text(json.dumps(config))
            harness = Harness(Path(name))
            run = harness.hidden if self.model_type in ENCODERS else harness.logits
            return run([Piece(0, self.ids, 0)])


def _other_values(key: str, value: Any) -> Iterator[Any]:
    """Values of the same type; of a key that nothing is known of, one of each."""
    if key in NAMES:
        yield from (other for other in NAMES[key] if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield 2 * value or 2
        yield value + 1
    elif isinstance(value, float):
        yield value * 1.5 or 0.5
        yield 0.0
    elif isinstance(value, str):
        yield f"no {value}"
    elif isinstance(value, list) and value:
        yield value[::-1]
        yield value[:-1]
    elif isinstance(value, dict):
        yield 5
    elif value is None:
        yield from (True, 3, 0.7)
