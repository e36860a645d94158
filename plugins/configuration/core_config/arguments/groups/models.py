"""Arguments about several models behind one address. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class SeveralModelsArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Several models."""

    place: ClassVar[int] = 174
    for_servers: ClassVar[bool] = True

    models: Annotated[
        str | None,
        Arg(
            "YAML file with a list of models that `core serve` offers at one address, each with its own arguments, `pinned` "
            "and `idle_timeout`; several models on the command line share all arguments.",
            metavar="FILE",
            since="0.2.0",
        ),
    ] = None
    model_budget: Annotated[
        int | None,
        Arg(
            "Bytes that the models of one `core serve` may take together, as planned; those that do not fit sleep until they "
            "are asked for. Unset: the available memory at the start.",
            human=True,
            gt=0,
            since="0.2.0",
        ),
    ] = None
    model_turn: Annotated[
        float,
        Arg(
            "Seconds that a model in use may keep others waiting for its memory; then it takes no new requests until these "
            "had their turn. At least four times what a change of models takes.",
            ge=0,
            since="0.2.0",
        ),
    ] = 5.0
    model_idle_timeout: Annotated[
        float | None,
        Arg(
            "Seconds without a request after which a model gives its memory back. `keep_alive` of a request says otherwise "
            "for once. Unset: when another model needs it.",
            ge=0,
            since="0.2.0",
        ),
    ] = None
