"""Network interfaces: virtual functions with a share of their port; see docs/reference/nic-driver.md."""
