"""`core serve` with several models behind one address, in one budget of memory."""
