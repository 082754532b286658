"""What an agent counts, in the text form of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drakkar.node.agent.agent import Agent


def render(agent: Agent) -> str:
    """The text of `/metrics`."""
    records = agent.claims.records() if agent.claims is not None else []
    prepared = sum(record.state == "prepared" for record in records)
    lines = [
        "# HELP drakkar_node_claims Claims on this node by state of their record.",
        "# TYPE drakkar_node_claims gauge",
        f'drakkar_node_claims{{state="prepared"}} {prepared}',
        f'drakkar_node_claims{{state="prepare-started"}} {len(records) - prepared}',
        "# HELP drakkar_node_drivers Registered drivers.",
        "# TYPE drakkar_node_drivers gauge",
        f"drakkar_node_drivers {len(agent.plugins.drivers())}",
        "# HELP drakkar_node_pods Pods that the agent looks after.",
        "# TYPE drakkar_node_pods gauge",
        f"drakkar_node_pods {agent.pods()}",
    ]
    return "\n".join(lines) + "\n"
