"""Live audit: rows of chosen steps are computed again, alone, and compared to the bit."""
