"""my_plugin, a my_kind plugin for core."""
