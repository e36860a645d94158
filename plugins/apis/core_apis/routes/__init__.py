"""The routes of the server, one noun a file; each module has a `router` that `core_apis.app` mounts."""
