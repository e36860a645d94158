"""Arguments about which cached prefixes stay. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class PrefixArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Cached prefixes."""

    place: ClassVar[int] = 42

    prefix_match_unit: Annotated[
        int | None,
        Arg("Tokens in the unit in which prefixes are matched: as many as in a block. Unset: --block-size.", ge=1),
    ] = None
    prefix_cache_retention_interval: Annotated[
        int | None,
        Arg(
            "Of layers with a state, states after multiples of this number of tokens are kept until they are evicted, besides "
            "those that the engine keeps of its own accord: 0: no others; none: after every block. A multiple of the block "
            "size. Blocks behind a sliding window are all kept until they are evicted.",
            ge=0,
        ),
    ] = 0
    mamba_cache_mode: Annotated[
        str,
        Arg(
            "Which states are cached, of any recurrent kind, not Mamba alone: all: after every block; align, none: those that "
            "the engine keeps of its own accord. --enable-prefix-caching false caches none.",
            choices=("none", "align", "all"),
        ),
    ] = "none"
