"""The card of a model on this machine: how close to the machine's limits it runs, and what would help."""
