"""Whose a request is. Owns: the type. Called by: everything that keeps or counts by API key."""

from __future__ import annotations

Tenant = int | None
"""The number of an API key, admin keys after the others; None where there are no keys."""
