"""Arguments about prompts that other servers compute. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class PrefillArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Prompts that other servers compute."""

    place: ClassVar[int] = 173
    for_servers: ClassVar[bool] = True

    prefill_servers: Annotated[
        list[str],
        Arg(
            "URLs of servers with kv_role kv_producer and --quotes, such as http://10.0.0.7:8000. A prompt is computed by one "
            "of them where its wait and prefill there and the transfer of its pages are foretold to take less than here.",
            commas=True,
            since="0.2.0",
        ),
    ] = msgspec.field(default_factory=list)
