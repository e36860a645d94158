"""Which arguments mean something to whom: to a server only, or to an engine in a process of its own.

Owns: these lists. Never does: declare an argument. Called by: `EngineArgs`, and the rules of the configuration.
"""

from __future__ import annotations

from core.args.schema import Field

SERVER_GROUPS = frozenset({"frontend", "limits", "journal"})
"""Groups of arguments that an HTTP server alone looks at."""

NOT_OF_SERVERS = frozenset({"config", "chat_template"})
"""Arguments of these groups that mean something to all."""

OF_KEYS = frozenset({"max_num_reqs_per_key", "max_num_queued_reqs_per_key", "max_num_queued_tokens_per_key"})
"""Arguments about API keys in other groups."""


def is_for_servers(field: Field) -> bool:
    """Whether only an HTTP server looks at the argument."""
    if field.name in OF_KEYS:
        return True
    return field.group in SERVER_GROUPS and field.name not in NOT_OF_SERVERS
