"""Trials of arguments on this machine, with this model and load: which ones help, and by how much."""
