"""The speculative plugin `mtp`: the layers behind a model's last one that were trained to guess a token more."""
