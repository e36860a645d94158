"""The properties of each sampling parameter: one row per field of `SamplingParams`.

Owns: `FIELDS`. Never does: read a value. Called by: the bodies of completions, the explanation of an answer, the denylist of
requests. A new parameter is a row here, and each of these then handles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple


class SamplingField(NamedTuple):
    """One sampling parameter.

    name:      name of the field of `SamplingParams`.
    explained: how the explanation of an answer reports it: its value, the number of its entries, or `apart`, in its own way.
    decides:   whether it determines what the engine computes, so that requests that differ in it are different requests. The
               other parameters determine when an answer ends, how it is shown or, like the seed, which of many answers it is.
    in_bodies: whether bodies of completions have a field of this name and meaning.
    """

    name: str
    explained: Literal["value", "count", "apart"]
    decides: bool
    in_bodies: bool


FIELDS: Final = (
    SamplingField("n", "value", decides=False, in_bodies=True),
    SamplingField("temperature", "value", decides=True, in_bodies=True),
    SamplingField("top_p", "value", decides=True, in_bodies=True),
    SamplingField("top_k", "value", decides=True, in_bodies=True),
    SamplingField("min_p", "value", decides=True, in_bodies=True),
    SamplingField("presence_penalty", "value", decides=True, in_bodies=True),
    SamplingField("frequency_penalty", "value", decides=True, in_bodies=True),
    SamplingField("repetition_penalty", "value", decides=True, in_bodies=True),
    SamplingField("min_tokens", "value", decides=True, in_bodies=True),
    SamplingField("ignore_eos", "value", decides=False, in_bodies=True),
    SamplingField("stop", "count", decides=False, in_bodies=True),
    SamplingField("stop_token_ids", "count", decides=False, in_bodies=True),
    SamplingField("bad_words", "count", decides=True, in_bodies=True),
    SamplingField("allowed_token_ids", "count", decides=True, in_bodies=True),  # the engine's request has `allowed_ids`
    SamplingField("logit_bias", "count", decides=True, in_bodies=True),
    SamplingField("seed", "apart", decides=False, in_bodies=True),
    SamplingField("max_tokens", "apart", decides=False, in_bodies=False),  # bodies have two names for it
    SamplingField("logprobs", "apart", decides=True, in_bodies=False),  # a boolean in a chat's body
    SamplingField("prompt_logprobs", "apart", decides=True, in_bodies=False),
    SamplingField("logprob_token_ids", "apart", decides=True, in_bodies=False),
    SamplingField("detokenize", "apart", decides=False, in_bodies=False),
    SamplingField("skip_special_tokens", "apart", decides=False, in_bodies=True),
    SamplingField("spaces_between_special_tokens", "apart", decides=False, in_bodies=True),
    SamplingField("include_stop_str_in_output", "apart", decides=False, in_bodies=True),
    SamplingField("output_kind", "apart", decides=False, in_bodies=False),
    SamplingField("truncate_prompt_tokens", "apart", decides=False, in_bodies=True),
    SamplingField("extra_args", "apart", decides=True, in_bodies=False),
    SamplingField("structured_outputs", "apart", decides=True, in_bodies=False),  # the engine's request has a `grammar`
    SamplingField("trace_decode_token_ids", "apart", decides=True, in_bodies=False),
)

MOST_LISTED: Final = 128
"""Maximum number of `logprob_token_ids`, as in vLLM."""


def field_names(chosen: Callable[[SamplingField], bool]) -> tuple[str, ...]:
    """Return the names of the fields for which `chosen` is true, in the table's order."""
    return tuple(field.name for field in FIELDS if chosen(field))
