"""Room `cli`; see the architecture page."""
