"""Scheduling policies: the order in which waiting requests are admitted."""
