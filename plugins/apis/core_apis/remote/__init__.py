"""A front and an engine that are two commands: `core serve --data-parallel-size-local 0`, and `core serve --headless`."""
