"""Verification and acceptance of drafts."""
