"""Arguments about layers of the KV cache, and about which cached prefixes stay. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar, Final

from core.api.specs import STATE_TYPES
from core.args.arg import Arg, ArgumentGroup

PLAIN: Final = tuple(dtype for dtype in STATE_TYPES if ":" not in dtype)
"""Storage types of states, whose numbers are rounded as --enable-mamba-cache-stochastic-rounding says."""


class PrefixArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Cached prefixes."""

    place: ClassVar[int] = 42

    kv_cache_dtype_skip_layers: Annotated[
        list[str] | None,
        Arg(
            "Layers whose keys and values keep --dtype: their numbers, from 0, or sliding_window for all that see a window. "
            "A draft's layers have --kv-cache-dtype."
        ),
    ] = None
    kv_sharing_fast_prefill: Annotated[
        bool,
        Arg(
            "Where the last layers read the keys and values of earlier ones (Gemma 3n, Gemma 4), compute them for those tokens "
            "of a prompt alone whose results are read: the last one, or all where their log-probabilities are asked for. "
            "Changes no bit of an answer.",
            since="0.2.0",
        ),
    ] = False
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
    mamba_cache_dtype: Annotated[
        str,
        Arg(
            "Storage type of the states of layers, of any recurrent kind, not Mamba alone. Types of 16 bits are rounded after "
            "every token, so that chunks change no bit; auto: float32.",
            choices=("auto", *PLAIN),
        ),
    ] = "auto"
    mamba_ssm_cache_dtype: Annotated[
        str,
        Arg(
            "The same for the recurrent part of states, without inputs of a convolution; auto: as --mamba-cache-dtype.",
            choices=("auto", *PLAIN),
        ),
    ] = "auto"
    enable_mamba_cache_stochastic_rounding: Annotated[
        bool,
        Arg(
            "Round the recurrent part of states in float16 up or down by chance, so that sums over many tokens are right on "
            "average. The chance depends on the token's position alone: a request's states do not depend on chunks or caches. "
            "torch_sdpa serves it.",
            since="0.2.0",
        ),
    ] = False
    mamba_cache_mode: Annotated[
        str,
        Arg(
            "Which states are cached, of any recurrent kind, not Mamba alone: all: after every block; align, none: those that "
            "the engine keeps of its own accord. --no-enable-prefix-caching caches none.",
            choices=("none", "align", "all"),
        ),
    ] = "none"
