"""The directory of a server's sessions.

Owns: where it is, and the warning about one that cannot be used. Never does: read a session. Called by: `core_apis.app`, the
parent of several API processes.
"""

from __future__ import annotations

import logging

from core.api.config import EngineConfig
from core_apis.sessions.files import SessionFiles
from core_config.served.server_config import ServerConfig
from core_tokens.tokenizer import Tokenizer

logger = logging.getLogger("core_apis")


def session_files(server: ServerConfig, engine: EngineConfig, tokenizer: Tokenizer) -> SessionFiles | None:
    """Return the files of sessions; None: this server keeps sessions in memory alone.

    With files, several API processes share their sessions.
    """
    directory = directory_of_sessions(engine)
    if directory is None or tokenizer.refusal or not server.limits.max_sessions_per_key:
        return None
    try:
        return SessionFiles(directory, tokenizer.backend.to_str())
    except OSError as error:
        logger.warning("Sessions will not survive a restart: %s cannot be used (%s).", directory, error)
        return None


def directory_of_sessions(engine: EngineConfig) -> str | None:
    """Return the directory beside the pages that outlive the server; None without them, or where other users can write."""
    pages = engine.cache.disk_path
    if pages is None and "file" in engine.plugins.kv_connectors:
        given = engine.plugins.arguments.get("kv_connector.file")
        if given is not None and given.get("key_file") is None:
            pages = given.get("directory")
    return f"{pages}/sessions" if pages else None
