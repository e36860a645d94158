"""Streams and responses that outlive their connections and the server, stored in the journal (`core_apis.journal`)."""
