"""The callers of a server: keys, tenants and what each may do."""
