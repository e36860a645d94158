"""Arguments about attention backends. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

from core.args.arg import Arg, ArgumentGroup


class AttentionArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Attention."""

    place: ClassVar[int] = 60

    attention_backend: Annotated[
        str | None,
        Arg(
            "Attention backend of all layers, or one a layer kind: full=NAME,sliding=NAME,latent=NAME,state=NAME. Unset: the "
            "platform decides.",
            plugin="attention",
        ),
    ] = None
    disable_cascade_attn: Annotated[
        bool | None,
        Arg(
            "Whether each sequence reads by itself the keys and values of a prefix that it shares. It must say what the "
            "attention backends do: cpu_paged reads such a prefix once where that changes no bit, others do not. Unset: either."
        ),
    ] = None
    attention_config: Annotated[
        dict[str, Any], Arg("Attention backends' own arguments: --attention-config.NAME.KEY VALUE.", short=("ac",))
    ] = {}
