"""A configuration whose engines hand requests to one another over sockets."""

import msgspec

from core.api.config import EngineConfig, ResolvedPlugin

TCP = ResolvedPlugin(kind="kv_connector", name="tcp", target="core_kv_connectors.manifests.tcp")


def with_role(config: EngineConfig, port: int, peers: tuple[str, ...] = ()) -> EngineConfig:
    """The same with kv_role kv_both. port: of its first engine. peers: addresses of engines of other commands."""
    plugins = config.plugins
    role = {"role": "kv_both", "listen": f"127.0.0.1:{port}", **({"peers": list(peers)} if peers else {})}
    plugins = msgspec.structs.replace(
        plugins,
        arguments={**plugins.arguments, "kv_connector.tcp": role},
        table=(*plugins.table, TCP),
        kv_connectors=(*plugins.kv_connectors, "tcp"),
    )
    return msgspec.structs.replace(config, plugins=plugins)
