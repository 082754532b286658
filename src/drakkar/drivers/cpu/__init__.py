"""Exclusive processors and memory by NUMA node; see docs/reference/cpu-driver.md."""
