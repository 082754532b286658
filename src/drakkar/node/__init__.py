"""Room ``node``: what runs on nodes, or pretends to.

So far hollow nodes: they register, renew their leases and run pods as far as the API can see,
without containers, at a few kB each.
"""
