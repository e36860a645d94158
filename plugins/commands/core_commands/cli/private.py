"""Redaction of machine reports: secrets, and names of users and hosts.

Owns: the patterns to redact. Never does: inspect the machine. Called by: `core collect-env`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

HIDDEN = "***"
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "AUTH", "CREDENTIAL", "PWD")
"""Substrings in the names of variables whose values are secrets."""
HOSTS = ("HOST", "ADDRESS", "ADDR", "ENDPOINT", "URL", "PROXY")
"""Endings of the names of variables whose values are hosts, even without a scheme."""
LOCAL = r"(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1?\])(?=[:/\s,]|$)"
ADDRESS = re.compile(rf"//(?!{LOCAL})[^/\s,]+")
"""Host, user and password of an address other than this machine's."""
QUERY = re.compile(r"\?[^\s,]+")
"""Query of an address, which may contain a token."""
FOLDER_OF_USER = re.compile(r"/(home|Users|users)/[^/\s:,]+")


def hidden_value(name: str, value: str) -> str:
    """Return the redacted value of an environment variable."""
    if any(word in name for word in SECRETS):
        return HIDDEN
    shown = without_names(value)
    is_plain_host = name.endswith(HOSTS) and "//" not in value and not re.fullmatch(LOCAL + r"(?::\d+)?", value)
    return HIDDEN if is_plain_host and shown else shown


def without_names(text: str) -> str:
    """Return the text without folders named after users, and without hosts, users and queries in addresses."""
    home = os.path.expanduser("~")
    if home not in ("", "/", "~"):
        text = text.replace(home, "~")
    text = FOLDER_OF_USER.sub(rf"/\1/{HIDDEN}", text)
    for name in _user_names():
        text = re.sub(rf"(?<=/){re.escape(name)}(?=/|$)", HIDDEN, text)
    if "://" in text:
        text = QUERY.sub("", ADDRESS.sub(f"//{HIDDEN}", text))
    return text


def _user_names() -> Iterator[str]:
    """Yield the current user's names; a folder named root reveals nothing."""
    for variable in ("USER", "LOGNAME", "SUDO_USER"):
        name = os.environ.get(variable, "")
        if name not in ("", "root"):
            yield name
