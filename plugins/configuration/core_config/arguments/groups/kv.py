"""Arguments that choose KV connectors by name. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class KVConnectorArgs(ArgumentGroup, frozen=True, kw_only=True):
    """KV connectors."""

    place: ClassVar[int] = 41

    kv_connectors: Annotated[
        list[str],
        Arg(
            "Further places for KV blocks, such as file, searched in this order after host memory and disk.",
            plugin="kv_connector",
            commas=True,
        ),
    ] = msgspec.field(default_factory=list)
    kv_connectors_config: Annotated[
        dict[str, Any], Arg("Their own arguments: --kv-connectors-config.NAME.KEY VALUE.")
    ] = {}
