"""Parsing of answers into events."""
