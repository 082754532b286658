"""The node agent: what a kubelet does on a node, as far as pods with devices need it."""
