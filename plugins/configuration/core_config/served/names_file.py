"""The file of further names that a server answers to: one a line, `#` begins a comment.

Owns: reading it, and its limits. Never does: reload it when it changes (`core_apis.served_names` does).
Called by: the server's settings, which refuse a wrong file, and the server.
"""

from __future__ import annotations

from pathlib import Path

from core.api.errors import ConfigError

MAX_BYTES = 64 * 1024
MAX_NAMES = 1000
LONGEST_NAME = 200


def read_names(path: str) -> tuple[str, ...]:
    """Return the names in their order, each once. Raises ConfigError."""
    shown = f"--served-model-name-file {path}"
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigError([f"{shown}: is no file."])
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        lines = text.decode("utf-8").splitlines()
    except OSError as error:
        raise ConfigError([f"{shown}: cannot be read: {error.strerror}."]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{shown}: is no UTF-8 text: {error}."]) from None
    names: list[str] = []
    for line in lines:
        name = line.partition("#")[0].strip()
        if name:
            names.append(name)
    distinct = tuple(dict.fromkeys(names))
    if len(text) > MAX_BYTES or len(distinct) > MAX_NAMES:
        raise ConfigError([f"{shown}: is too long; expected at most {MAX_NAMES} names in {MAX_BYTES} bytes."])
    wrong = [name for name in distinct if len(name) > LONGEST_NAME or not name.isprintable()]
    if wrong:
        raise ConfigError(
            [f"{shown}: {wrong[0][:LONGEST_NAME]!r} is no name; expected at most {LONGEST_NAME} printable characters."]
        )
    return distinct
