"""Tools that the server runs: the MCP servers of the operator, their lists of tools, and calls of these."""
