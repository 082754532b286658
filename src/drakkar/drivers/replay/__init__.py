"""A driver that stands for hardware by its recorded slices; see docs/reference/replay-driver.md."""
