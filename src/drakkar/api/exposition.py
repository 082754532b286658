"""The text form of Prometheus in which every part shows its numbers.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations


def family(name: str, kind: str, help: str) -> list[str]:
    """The lines above the samples of one metric; ``kind`` is counter, gauge, histogram or summary."""
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def label_pairs(**labels: str) -> str:
    """What stands within the braces of a sample, escaped and in the order of the names."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels.items()))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
