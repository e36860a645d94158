"""The routes of the server, one module per noun; each module has a `router` that `core_apis.app` mounts."""
