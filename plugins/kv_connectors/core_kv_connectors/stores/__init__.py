"""Pages in stores of others, which several engines share."""
