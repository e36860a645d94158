"""The table of resolved plugins in a worker or engine process: it loads exactly the chosen plugins, or raises.

Owns: verification and loading of chosen plugins. Never does: discover, choose, or fall back.
Called by: executor and engine processes; config, for the loader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import importlib_metadata

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.args.plugin_arguments import convert_struct
from core.plugin.blame import blamed
from core.plugin.discovery import label, origin
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import Manifest, load_manifest, sha256_of, source_file
from core.plugin.signatures import contracts_of, missing_parts, wrong_signatures


class PluginTable:
    """Chosen plugins by kind and name; each process that loads plugins owns one. rows: `EngineConfig.plugins.table`."""

    def __init__(self, rows: Sequence[ResolvedPlugin]) -> None:
        self._rows = {(row.kind, row.name): row for row in rows}
        self._manifests: dict[tuple[str, str], Manifest] = {}

    def row(self, kind: str, name: str) -> ResolvedPlugin:
        """Return the row of a chosen plugin. Raises PluginError when it is not in the table."""
        row = self._rows.get((kind, name))
        if row is None:
            known = ", ".join(f"{k} {n}" for k, n in self._rows) or "none"
            raise PluginError(f"{kind} plugin '{name}' is not in the resolved table; it holds: {known}.")
        return row

    def load(self, kind: str, name: str, context: LoadContext) -> Any:
        """Build the plugin's object.

        context.arguments may be a mapping of plain values (or None): it becomes the plugin's own Struct.
        Raises PluginError when the plugin is not in the table, is not the one that was chosen, fails, or answers with an
        object that lacks a part of its kind's contract.
        """
        manifest = self._read(kind, name)
        return load_plugin(manifest, context)

    def capabilities(self, kind: str, name: str) -> Mapping[str, Any]:
        """Return the capabilities that a chosen plugin declares, whether or not it is loaded. Raises PluginError, as `load`."""
        manifest = self._manifests.get((kind, name)) or self._read(kind, name)
        return manifest.spec.capabilities

    def _read(self, kind: str, name: str) -> Manifest:
        """Verify that a chosen plugin is the installed one, and read its manifest."""
        row = self.row(kind, name)
        verify(row)
        manifest = self._manifests[kind, name] = load_manifest(row)
        return manifest

    def blamed(self, error: Exception) -> Exception:
        """Return a PluginError that names the loaded plugin whose code raised `error`, else `error` itself."""
        return blamed(error, self._manifests.values())

    def blame(self, error: Exception) -> None:
        """Raise the PluginError of `blamed`; return when no plugin's code raised `error`."""
        found = self.blamed(error)
        if found is not error:
            raise found from error


def load_plugin(manifest: Manifest, context: LoadContext) -> Any:
    """Call one manifest's `core_load`: convert its arguments first and check its answer after. Raises PluginError."""
    row = manifest.row
    if context.arguments is None or isinstance(context.arguments, Mapping):
        values, problems = convert_struct(manifest.spec.arguments, context.arguments or {}, f"{row.kind}.{row.name}")
        if problems:
            raise PluginError(" ".join(problems))  # The user's mistake, so no row: the plugin is not at fault.
        context = dataclasses.replace(context, arguments=values)
    loaded = manifest.call("core_load", context=context)
    manifest.found_in(type(loaded).__module__)
    wanted = contracts_of(row.kind, manifest.spec.capabilities, loaded)
    contracts = wanted.values()
    see = " and ".join(name.replace(":", ".") for name in wanted)
    lacking = missing_parts(contracts, loaded)
    if lacking:
        answered = f"core_load answered a {type(loaded).__name__} without {', '.join(lacking)}"
        raise PluginError(f"{label(row)}: {answered}; see {see}.", row)
    wrong = wrong_signatures(contracts, loaded)
    if wrong:
        raise PluginError(f"{label(row)}: {'; '.join(wrong)}; see {see}.", row)
    return loaded


def verify(row: ResolvedPlugin) -> None:
    """Raise PluginError unless this process has the distribution's version, or the file's content, that was chosen."""
    if row.distribution:
        try:
            installed = importlib_metadata.version(row.distribution)
        except importlib_metadata.PackageNotFoundError:
            installed = "nothing"
        if installed != row.version:
            raise PluginError(
                f"{row.kind} plugin '{row.name}': chosen from {origin(row)}, but here {installed} is installed; "
                "install the same version in every process's environment."
            )
        return
    source = source_file(row.target)
    if source is None or not source.is_file():
        raise PluginError(f"{row.kind} plugin '{row.name}': {row.target} does not exist here.")
    if row.sha256 and sha256_of(source) != row.sha256:
        raise PluginError(f"{row.kind} plugin '{row.name}': {source} has changed since it was chosen; start again.")
