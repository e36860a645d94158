"""The speculative plugin `eagle`: one block that guesses the target's next hidden state."""
