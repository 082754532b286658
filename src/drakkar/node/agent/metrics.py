"""What an agent counts, in the text form of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drakkar.api.exposition import family

if TYPE_CHECKING:
    from drakkar.node.agent.agent import Agent


def render(agent: Agent) -> str:
    """The text of `/metrics`."""
    records = agent.claims.records() if agent.claims is not None else []
    prepared = sum(record.state == "prepared" for record in records)
    lines = [
        *family("drakkar_node_claims", "gauge", "Claims on this node by state of their record."),
        f'drakkar_node_claims{{state="prepared"}} {prepared}',
        f'drakkar_node_claims{{state="prepare-started"}} {len(records) - prepared}',
        *family("drakkar_node_drivers", "gauge", "Registered drivers."),
        f"drakkar_node_drivers {len(agent.plugins.drivers())}",
        *family("drakkar_node_pods", "gauge", "Pods that the agent looks after."),
        f"drakkar_node_pods {agent.pods()}",
    ]
    return "\n".join(lines) + "\n"
