"""Libraries that move memory between machines, as transports of leased pages."""
