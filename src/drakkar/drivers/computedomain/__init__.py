"""Multi-node NVLink domains: a channel of a clique for a job's pods; see docs/reference/computedomain-driver.md."""
