"""Room `cel`; see the architecture page."""
