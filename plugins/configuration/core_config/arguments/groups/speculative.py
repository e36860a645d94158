"""Arguments about speculative decoding. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

from core.args.arg import Arg, ArgumentGroup


class SpeculativeArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Speculative decoding."""

    place: ClassVar[int] = 90

    speculative_config: Annotated[
        dict[str, Any] | None,
        Arg(
            "Drafts: method (a plugin), num_speculative_tokens (the most a step), adaptive (false: always the most), "
            "disable_by_batch_size, num_speculative_tokens_per_batch_size, and the method's own arguments. Unset: none.",
            short=("sc",),
            plugin="speculative",
        ),
    ] = None
