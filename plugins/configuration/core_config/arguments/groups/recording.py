"""Arguments about recorded traffic. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class RecordArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Recorded traffic."""

    place: ClassVar[int] = 174
    for_servers: ClassVar[bool] = True

    record_traffic: Annotated[
        str | None,
        Arg(
            "Directory in which bodies, tokens and receipts of some requests are recorded, for `core diff`. Requests with the "
            "header X-No-Record are left out. Unset: nothing is recorded.",
            metavar="DIR",
        ),
    ] = None
    record_share: Annotated[float, Arg("Share of the requests that are recorded.", gt=0, le=1)] = 0.01
    record_size: Annotated[
        int, Arg("Most bytes that the records take; the oldest go first.", human=True, ge=1 << 20)
    ] = 256 * 1024 * 1024
