"""Room `insight`; see the architecture page."""
