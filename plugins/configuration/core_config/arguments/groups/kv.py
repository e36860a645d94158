"""Arguments that choose KV connectors, and what they hand to other engines. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class KVTransferKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-transfer-config."""

    kv_connector: Annotated[
        str | None,
        Arg(
            "KV connector (a plugin) that evicted blocks are saved to and found in, after host memory and disk.",
            plugin="kv_connector",
        ),
    ] = None
    kv_role: Annotated[
        str,
        Arg(
            "Directions: kv_both saves and loads. With tcp, kv_producer leases the blocks of prompts to other engines, and "
            "kv_consumer takes them from --kv-peers. With tcp and --data-parallel-size, kv_both: running requests of a drained "
            "engine go on in another one with their blocks.",
            choices=("kv_both", "kv_producer", "kv_consumer"),
        ),
    ] = "kv_both"
    kv_ip: Annotated[
        str | None, Arg("With tcp: address at which consumers reach this engine. Unset: 127.0.0.1 for a producer.")
    ] = None
    kv_port: Annotated[
        int | None,
        Arg("With tcp: port at that address; engine N of a group adds N. Unset: 14579 for a producer.", ge=1, le=65535),
    ] = None
    engine_id: Annotated[str | None, Arg("With tcp: name of this engine in answers. Unset: drawn.")] = None
    kv_buffer_size: Annotated[
        int | None, Arg("With tcp: bytes of received pages that are not in the KV cache yet. Unset: 1e9.", gt=0)
    ] = None
    kv_load_failure_policy: Annotated[
        str,
        Arg(
            "With tcp, file, shm and a disk: recompute computes a prompt whose pages do not come; fail ends its request with "
            "an error.",
            choices=("recompute", "fail"),
        ),
    ] = "recompute"
    kv_connector_extra_config: Annotated[dict[str, Any], Arg("The connector's own arguments.")] = {}


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
    kv_transfer_config: Annotated[
        dict[str, Any] | None,
        Arg("A further place for KV blocks that leave the KV cache. Unset: none.", keys=KVTransferKeys),
    ] = None
    kv_peers: Annotated[
        list[str],
        Arg(
            "HOST:PORT of the engines whose blocks kv_transfer_params may name; no other address is dialled.",
            commas=True,
            since="0.2.0",
        ),
    ] = msgspec.field(default_factory=list)
    kv_key_file: Annotated[
        str | None,
        Arg(
            "File (mode 0600) with a secret of 32 bytes or more, the same for all these engines; unset: all are here.",
            since="0.2.0",
        ),
    ] = None
    kv_lease: Annotated[
        float,
        Arg(
            "Seconds for which the blocks of a prompt wait for the engine that answers it.",
            gt=0,
            le=3600,
            since="0.2.0",
        ),
    ] = 30.0
    kv_rate_limit: Annotated[
        int | None,
        Arg(
            "Bytes of KV blocks a second that this engine sends to others, and as many that it takes. Unset: no limit.",
            ge=10_000_000,
            since="0.2.0",
        ),
    ] = None
