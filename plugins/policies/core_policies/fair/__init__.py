"""The `fair` policy: users take turns by the service that each has received."""
