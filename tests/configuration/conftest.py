"""Fixtures of the tests of configurations."""

import pytest

from core.plugin.registry import PluginRegistry


@pytest.fixture(scope="module")
def registry() -> PluginRegistry:
    """Discovered once; platforms are probed once."""
    return PluginRegistry()
