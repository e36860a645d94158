"""The tenant of a request.

Owns: the type. Called by: everything that keeps or counts by API key.
"""

from __future__ import annotations

Tenant = int | None
"""The index of an API key, admin keys after the others; None if there are no keys."""
