"""One plugin of each kind. Everything here uses only the published surface of `core`."""
