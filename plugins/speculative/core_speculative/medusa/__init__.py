"""The speculative plugin `medusa`: a small network for each draft position, on the target's last hidden state."""
