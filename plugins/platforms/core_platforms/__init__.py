"""The platforms shipped with the engine, one folder each."""
