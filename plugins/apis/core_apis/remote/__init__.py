"""An API server and an engine as two commands: `core serve --data-parallel-size-local 0`, and `core serve --headless`."""
