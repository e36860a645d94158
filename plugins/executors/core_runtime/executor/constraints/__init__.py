"""Grammars of running sequences, their masks, and forced text."""
