"""Room `inventory`; see the architecture page."""
