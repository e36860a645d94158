"""The filter of the web page's own polling requests, every second, out of the access log.

Owns: the rule which lines of the access log are successful polls of the page. Never does: format. Called by:
`core_observers.logging`.
"""

from __future__ import annotations

import logging
from typing import Final

MARK: Final = "?look"
"""The end of the addresses that the page polls by itself."""


class PageLooks(logging.Filter):
    """A filter that passes all records except uvicorn's about a successful poll."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether `record` passes. uvicorn's arguments are client, method, path, version and status."""
        if record.name != "uvicorn.access" or not isinstance(record.args, tuple) or len(record.args) != 5:
            return True
        _, method, path, _, status = record.args
        return method != "GET" or status != 200 or not str(path).endswith(MARK)
