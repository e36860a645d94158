"""Keys of the settings of engine observers among the arguments of plugins (`PluginChoices.arguments`).

Owns: these keys. Never does: import anything, as helper processes read it. Called by: the configuration, which writes them; the
observers, and whoever asks whether an engine has one.
"""

from typing import Final

WORKER_EXTENSION: Final = "engine_observer.worker_extension"
CRASH_DUMP: Final = "engine_observer.crash_dump"
NUMA_BINDING: Final = "engine_observer.numa"
RECORDINGS: Final = "engine_observer.recordings"
PROFILE_WINDOW: Final = "engine_observer.profile_window"
