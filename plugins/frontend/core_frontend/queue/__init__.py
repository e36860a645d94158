"""Limits of the queue and their shares."""
