"""Compilation ahead of time, launches, and tuning."""
