"""Dynamic Resource Allocation for Kubernetes, in Python."""
