"""Room `allocator`; see the architecture page."""
