"""The speculative plugin `eagle3`: a block that reads three depths of the target, with a vocabulary of its own."""
