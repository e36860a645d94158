"""The speculative plugin `eagle`: one block that predicts the target's next hidden state."""
