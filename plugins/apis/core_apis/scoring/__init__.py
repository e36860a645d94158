"""Items scored by a generating model: the probability of a label after query and item (/generative_scoring)."""
