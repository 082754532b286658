"""Room `client`; see the architecture page."""
