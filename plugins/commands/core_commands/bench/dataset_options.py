"""Options about prompts, under vLLM's names.

Owns: declarations only. Called by: the commands that send prompts, datasets.
"""

from typing import Annotated

import msgspec

from core.args.arg import Arg

NAMES = ("random", "custom", "sharegpt", "prefix_repetition", "json")
OTHER_NAMES = ("hf", "burstgpt", "sonnet", "random-mm", "random-rerank")


class DatasetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options about prompts."""

    dataset_name: Annotated[
        str,
        Arg(f"Where prompts come from: {', '.join(NAMES)}.", choices=(*NAMES, *OTHER_NAMES), metavar="NAME"),
    ] = "random"
    dataset_path: Annotated[str | None, Arg("File of the datasets custom and sharegpt.", metavar="FILE")] = None
    num_prompts: Annotated[int, Arg("Requests.", human=True, ge=1, le=10_000_000)] = 1000
    seed: Annotated[int, Arg("Equal seeds make equal prompts and arrivals.")] = 0
    input_len: Annotated[
        int | None, Arg("Tokens of a prompt, about; of the datasets random and json.", ge=1, le=1 << 24)
    ] = None
    output_len: Annotated[int | None, Arg("Tokens of an answer, for any dataset.", ge=1, le=1 << 24)] = None
    oversample: Annotated[bool, Arg("Take prompts of a file twice where it has too few.")] = True
    random_input_len: Annotated[int, Arg("random: tokens of a prompt, about.", ge=1, le=1 << 24)] = 1024
    random_output_len: Annotated[int, Arg("random: tokens of an answer.", ge=1, le=1 << 24)] = 128
    random_range_ratio: Annotated[float, Arg("random: both lengths differ by up to this share.", ge=0, le=1)] = 0.0
    random_prefix_len: Annotated[int, Arg("random: tokens that all prompts begin with.", ge=0, le=1 << 24)] = 0
    prefix_repetition_prefix_len: Annotated[int, Arg("prefix_repetition: tokens of a prefix.", ge=0)] = 256
    prefix_repetition_suffix_len: Annotated[int, Arg("prefix_repetition: tokens of an ending.", ge=1)] = 256
    prefix_repetition_num_prefixes: Annotated[int, Arg("prefix_repetition: prefixes.", ge=1)] = 10
    prefix_repetition_output_len: Annotated[int, Arg("prefix_repetition: tokens of an answer.", ge=1)] = 128
    sharegpt_output_len: Annotated[int | None, Arg("sharegpt: tokens of an answer. Unset: the file's.", ge=1)] = None
    custom_output_len: Annotated[
        int | None, Arg("custom: tokens of an answer. Unset: the line's output_tokens.", ge=1)
    ] = 256
    json_schema_path: Annotated[str | None, Arg("json: file with the schema. Unset: a small one.")] = None
