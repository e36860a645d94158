"""Where the configuration says which class the worker has.

Owns: the key among the arguments of plugins (`PluginChoices.arguments`), and the executors that read it. Never does: import the
class. Called by: the configuration, which writes the key; executors.
"""

from typing import Final

WORKER_CLASS: Final = "worker.class"
EXECUTORS: Final = ("torch", "mp", "ray")
"""Executors whose workers may have a class of the user's own."""
