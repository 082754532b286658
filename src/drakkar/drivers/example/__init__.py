"""A driver without hardware that shows every way to model devices; see docs/reference/example-driver.md."""

from drakkar.drivers.example.driver import PROFILES, ExampleDriver

__all__ = ["PROFILES", "ExampleDriver"]
