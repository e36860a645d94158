"""Helper processes: work that may hang, crash or take too much memory is done in a process that can be ended."""
