"""The page looks at the server every second; the access log is about others.

Owns: the rule which lines of the access log are looks of the page that went well. Never does: format. Called by:
`core_observers.logging`.
"""

from __future__ import annotations

import logging
from typing import Final

MARK: Final = "?look"
"""How addresses end that the page asks for by itself, again and again."""


class PageLooks(logging.Filter):
    """Lets all records pass but uvicorn's about such a request, unless it failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` passes. uvicorn's arguments are client, method, path, version and status."""
        if record.name != "uvicorn.access" or not isinstance(record.args, tuple) or len(record.args) != 5:
            return True
        _, method, path, _, status = record.args
        return method != "GET" or status != 200 or not str(path).endswith(MARK)
