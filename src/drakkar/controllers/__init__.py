"""Room `controllers`; see the architecture page."""
