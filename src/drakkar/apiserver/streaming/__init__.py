"""exec, attach, logs and port-forward: checked here, carried to and from the agent of the pod's node.

:mod:`targets` says which node and path a request means (pure), :mod:`agents` talks to nodes, :mod:`answers` is what the
server calls, :mod:`gateway` carries the bytes once a connection of a client has been upgraded.
"""
