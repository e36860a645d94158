"""The speculative plugin `mtp`: the layers after a model's last one that were trained to predict one more token."""
