"""Streams and responses that outlive their connections and the server, by means of the journal (`core_apis.journal`)."""
