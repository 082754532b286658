"""Room `drivers`; see the architecture page."""
