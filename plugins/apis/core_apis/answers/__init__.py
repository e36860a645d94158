"""Conversion of engine outputs into the answers of the generating APIs."""
