"""What a run is started with, once all that nobody said is filled in."""

from dataclasses import replace

from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.model import Rules, RunOptions


def resolve_options(
    asked: RunOptions | None, session_agent: str, rules: Rules, fallback_agent: str = ""
) -> RunOptions:
    """Fills in defaults: the session's agent, then the server's, then `fallback_agent`.

    Raises:
        Refused: FIELD_INVALID where no agent is left, AGENT_NOT_FOUND where it is not allowed.
    """
    given = asked or RunOptions()
    agent = given.agent or session_agent or rules.default_agent or fallback_agent
    if not agent:
        raise invalid(
            "run_options.agent", "names no agent, and neither session nor server has a default"
        )
    if rules.agents and agent not in rules.agents:
        raise Refused(Reason.AGENT_NOT_FOUND, agent=agent)
    limits = given.limits
    steps = limits.max_model_steps or rules.agent_model_steps.get(agent, rules.max_model_steps)
    return replace(
        given,
        agent=agent,
        limits=replace(limits, max_model_steps=steps),
        cancel_grace=rules.cancel_grace if given.cancel_grace is None else given.cancel_grace,
        max_recoveries=(
            rules.max_recoveries if given.max_recoveries is None else given.max_recoveries
        ),
    )
