"""Manifest of the `ngram` proposer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class NgramArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `ngram` under `--speculative-config`."""

    prompt_lookup_max: Annotated[
        int, msgspec.Meta(ge=1, le=64, description="Longest suffix, in tokens, that is looked for in what came before.")
    ] = 4
    prompt_lookup_min: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Shortest suffix, in tokens. Unset: half of prompt_lookup_max, at least 1."),
    ] = None

    def __post_init__(self) -> None:
        if self.shortest > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min is {self.prompt_lookup_min}, more than prompt_lookup_max ({self.prompt_lookup_max}); "
                "lower it or raise the other."
            )

    @property
    def shortest(self) -> int:
        """Return `prompt_lookup_min`, or half of `prompt_lookup_max`, at least 1."""
        if self.prompt_lookup_min is not None:
            return self.prompt_lookup_min
        return max(1, self.prompt_lookup_max // 2)


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="ngram",
        summary="drafts copied from earlier text that followed the same words; needs no second model",
        arguments=NgramArguments,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the proposer with the lengths of suffixes from the arguments."""
    from core_speculative.ngram.proposer import NgramProposer

    arguments = context.arguments or NgramArguments()
    return NgramProposer(shortest=arguments.shortest, longest=arguments.prompt_lookup_max)


class NgramGpu:
    """Manifest of `ngram_gpu`, another name for `ngram`: there is one form of it for every device."""

    CONTRACT = CONTRACT

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Describe the plugin: an alias of `ngram`."""
        return PluginSpec(name="ngram_gpu", summary="another name for ngram", alias_of="ngram")


NGRAM_GPU = NgramGpu()
