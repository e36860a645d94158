"""The attention backends shipped with the engine."""
