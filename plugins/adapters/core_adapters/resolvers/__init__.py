"""Plugins of kind `resolver`, which find an adapter by a name that a server does not know; their contract."""

from core_adapters.resolvers.contract import Resolver

__all__ = ["Resolver"]
