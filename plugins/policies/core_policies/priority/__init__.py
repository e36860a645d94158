"""The `priority` policy: lower numbers first, then by arrival."""
