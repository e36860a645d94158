"""The `fcfs` policy: first come, first served."""
