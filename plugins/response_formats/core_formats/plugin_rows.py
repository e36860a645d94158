"""Rows from plugins, and from files given by the user.

Owns: their reading and error messages. Never does: choose among rows. Called by: the server's arguments, detection.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from core.api.errors import CoreError, PluginError, UserError
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import Manifest, import_file
from core.plugin.registry import PluginRegistry
from core.plugin.table import load_plugin
from core_formats.response_format import ResponseFormat
from core_formats.row_files import FormatKind, format_named, own_rows, read_rows

KIND = "response_format"
MAX_FILE_BYTES = 1 << 20


def rows_of_plugin(manifest: Manifest) -> list[ResponseFormat]:
    """Return the rows of one plugin. Raises PluginError."""
    loaded = load_plugin(manifest, LoadContext())
    text = loaded.rows()
    try:
        rows = read_rows(text)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, TypeError) as error:
        name = manifest.row.name
        raise PluginError(
            f"{KIND} '{name}': rows() is no TOML with response formats: {error}.", manifest.row
        ) from error
    return rows


def rows_of_file(path: Path) -> list[ResponseFormat]:
    """Return the rows of a file: TOML, or Python with a text `ROWS`. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; expected TOML with response formats.")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserError(f"{path}: has more than {MAX_FILE_BYTES} bytes; expected TOML with response formats.")
    text = _text(path)
    try:
        return read_rows(text)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        see = "see docs/plugins/response_format.md"
        raise UserError(f"{path}: is no TOML with response formats: {error}; {see}.") from error


def _text(path: Path) -> str:
    if path.suffix != ".py":
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: is no UTF-8 text: {error}.") from error
    try:
        text = getattr(import_file(path), "ROWS", None)
    except Exception as error:  # the user's own code may raise anything
        raise UserError(f"{path}: cannot be imported: {type(error).__name__}: {error}.") from error
    if not isinstance(text, str):
        see = "see docs/plugins/response_format.md"
        raise UserError(f"{path}: has no text ROWS; a parser is a row of data here, not a class: {see}.")
    return text


def row_named(
    name: str, kind: FormatKind, registry: PluginRegistry, files: tuple[ResponseFormat, ...] = ()
) -> ResponseFormat:
    """Return the row of a name: from the user's files, else from the engine, else from the plugin of that name.

    Raises UserError and PluginError.
    """
    try:
        return format_named(name, kind, (*files, *own_rows()))
    except UserError:
        installed = [row for row in registry.rows(KIND) if row.name == name.lower().replace("-", "_")]
        if not installed and ":" not in name:
            raise
    rows = rows_of_plugin(registry.get(KIND, name))
    if len(rows) == 1:
        return rows[0]
    return format_named(name.rpartition(":")[2], kind, tuple(rows))


def installed_rows(registry: PluginRegistry) -> list[ResponseFormat]:
    """Return the rows of all usable plugins; broken ones are left out and reported by `core plugins list`."""
    found: list[ResponseFormat] = []
    for _, manifest in registry.candidates(KIND):
        if isinstance(manifest, str):
            continue
        try:
            found += rows_of_plugin(manifest)
        except CoreError:
            continue  # not requested by name
    return found
