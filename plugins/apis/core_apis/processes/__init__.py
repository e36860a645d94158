"""Several API processes in front of one engine, and their supervisor."""
