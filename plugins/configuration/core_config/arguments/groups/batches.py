"""Arguments about the batch class and batches. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class BatchArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Batches."""

    place: ClassVar[int] = 172
    for_servers: ClassVar[bool] = True

    default_service_tier: Annotated[
        str,
        Arg(
            "Class of requests whose service_tier is left out or auto. flex: after all others, with what these leave of each "
            "step.",
            choices=("default", "flex"),
            since="0.2.0",
        ),
    ] = "default"
    batch_directory: Annotated[
        str | None,
        Arg(
            "Directory of OpenAI's /v1/files and /v1/batches, which go on when the server is started again. Unset: the server "
            "has neither.",
            metavar="DIR",
            since="0.2.0",
        ),
    ] = None
    batch_directory_size: Annotated[
        int,
        Arg("Most bytes that the files of one API key take, results included.", human=True, ge=1 << 20, since="0.2.0"),
    ] = 1024 * 1024 * 1024
    max_batch_requests: Annotated[int, Arg("Most requests of one batch.", human=True, ge=1, since="0.2.0")] = 50_000
