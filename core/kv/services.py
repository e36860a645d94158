"""The older name of `KVConnectors`.

Owns: nothing. Never does: anything. Called by: modules that were written before connectors were plugins.
"""

from __future__ import annotations

from core.kv.connectors import KVConnectors as KVServices

__all__ = ["KVServices"]
