"""Arguments about the request journal. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class JournalArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Request journal."""

    place: ClassVar[int] = 170
    for_servers: ClassVar[bool] = True

    request_journal: Annotated[
        str | None,
        Arg(
            "Directory in which streams and responses in the background are kept, so that they go on when the server is "
            "started again and clients can read on where they were. Unset: they end with the server or the connection.",
            metavar="DIR",
        ),
    ] = None
    request_journal_size: Annotated[
        int, Arg("Most bytes that the journal takes; the oldest of what has ended goes first.", human=True, ge=1 << 20)
    ] = 256 * 1024 * 1024
    request_journal_lifetime: Annotated[
        float, Arg("Seconds for which a stream that has ended can still be read again.", gt=0)
    ] = 3600.0
    request_journal_patience: Annotated[float, Arg("Seconds that a stream goes on while nobody reads it.", gt=0)] = 60.0
