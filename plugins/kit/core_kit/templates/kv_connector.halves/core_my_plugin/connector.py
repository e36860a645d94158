"""The half beside the scheduler: it knows which pages there are, and imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from core_my_plugin.files import file_name

from core.api.config import EngineConfig
from core_kv_connectors.halves.connector import SplitConnector
from core_kv_connectors.halves.contract import BlockName


class Connector(SplitConnector):
    """Pages of a directory: those that were there at the start, and those that this engine has saved since."""

    def __init__(self, directory: str, fingerprint: Callable[[], str]) -> None:
        super().__init__(fingerprint)
        self._directory = directory
        self._names = self._list()

    def lookup(self, name: BlockName) -> bool:
        """Whether there is a file with this name; its content is verified when it is loaded."""
        return file_name(name) in self._names

    def saved(self, name: BlockName) -> None:
        """Note a new file."""
        self._names.add(file_name(name))

    def gone(self, name: BlockName) -> None:
        """Note that a file is not to be used."""
        self._names.discard(file_name(name))

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Look for pages of the other weights, too."""
        super().use_weights(config, fingerprint)
        self._names |= self._list()

    def cleared(self) -> None:
        """Use no page of the directory any more."""
        super().cleared()
        self._names = set()

    def _list(self) -> set[str]:
        return {path.name for path in Path(self._directory).glob("*.page")} if self._directory else set()
