"""Room `driver`; see the architecture page."""
