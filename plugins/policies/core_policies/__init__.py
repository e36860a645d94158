"""Scheduling policies: in which order waiting requests are admitted."""
