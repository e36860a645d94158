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

OF_QUEUES = frozenset({"max_num_queued_reqs", "max_num_queued_tokens", "request_timeout"})
"""Arguments of an engine whose requests come from others and wait: in a process of its own, as `AsyncLLM` and a server have it.
Whoever calls `LLM` waits for it."""


def means_nothing_to_llm(field: Field) -> bool:
    """Whether an engine in the caller's own process has no use for the argument."""
    return is_for_servers(field) or field.name in OF_QUEUES


def is_for_servers(field: Field) -> bool:
    """Whether only an HTTP server looks at the argument."""
    if field.name in OF_KEYS:
        return True
    return field.group in SERVER_GROUPS and field.name not in NOT_OF_SERVERS
