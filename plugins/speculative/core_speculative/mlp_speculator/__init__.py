"""The speculative plugin `mlp_speculator`: a state that goes from draft to draft, taking in each drawn token."""
