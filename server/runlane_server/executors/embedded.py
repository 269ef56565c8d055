"""The server's own executor: agents of the settings, over the port that all executors use."""

import asyncio
import contextlib
import os
from collections.abc import Iterable

import structlog
from runlane import Agent, Client, Executor, McpTools, Tool, ToolError, tool
from runlane.errors import RunlaneError

from runlane_server.executors.models import ServerModel, build_model
from runlane_server.settings import AgentConfig, DelegateConfig, McpConfig, SettingsError

EMBEDDED_PREFIX = "embedded-"
"""How the id of every embedded executor begins: its leases end with its server."""

# The longest that an agent waits before it is tried again.
_RETRY_SECONDS = 30.0

_LOG = structlog.get_logger(__name__)


class EmbeddedExecutor:
    """Runs the agents of the settings.

    Each agent has an executor of its own, so that a busy one leaves the others their places.

    Args:
        target: Where the server is; a private socket of it.
        agents: The agents.
        executor_id: Begins with `EMBEDDED_PREFIX`; never used before.
        api_key: Opens every namespace; empty where nobody is asked for a credential.

    Raises:
        ValueError: The id does not begin so.
        SettingsError: A model cannot be made.
    """

    def __init__(
        self,
        target: str,
        agents: Iterable[AgentConfig],
        executor_id: str,
        api_key: str = "",
    ) -> None:
        if not executor_id.startswith(EMBEDDED_PREFIX):
            raise ValueError(f"{executor_id!r} does not begin with {EMBEDDED_PREFIX!r}")
        self._target = target
        self._executor_id = executor_id
        self._api_key = api_key
        self._configs = tuple(agents)
        self._places = [
            (index, namespace)
            for index, config in enumerate(self._configs)
            for namespace in config.namespaces
        ]
        # Made here, so that what is wrong with one is known before the server takes calls.
        self._models: list[ServerModel] = [build_model(config.model) for config in self._configs]
        self._clients: dict[str, Client] = {}
        self._executors: dict[int, Executor] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = asyncio.Event()

    async def start(self) -> None:
        """Begins to take activations; the server must listen.

        Raises:
            SettingsError: The tools of an agent do not fit together.
        """
        for namespace in {namespace for _, namespace in self._places}:
            self._clients[namespace] = Client(
                self._target,
                client_name="embedded",
                api_key=self._api_key,
                namespace=namespace if self._api_key else "",
            )
        for place, (index, _) in enumerate(self._places):
            self._executors[place] = self._make(place, 0)
            self._tasks.append(asyncio.create_task(self._run(place, self._configs[index].name)))

    def _make(self, place: int, attempt: int) -> Executor:
        index, namespace = self._places[place]
        config = self._configs[index]
        suffix = f"-{attempt}" if attempt else ""
        try:
            return Executor(
                self._clients[namespace],
                Agent(
                    name=config.name,
                    model=self._models[index],
                    system=config.system,
                    model_name=config.model.name,
                    tools=[
                        *(_delegate(other) for other in config.delegate),
                        *(_mcp_tools(server) for server in config.mcp),
                    ],
                    ask_question=config.ask_question,
                    policies=config.policies,
                ),
                executor_id=f"{self._executor_id}-{place + 1}{suffix}",
                concurrency=config.concurrency,
            )
        except ValueError as error:
            raise SettingsError(f"agent {config.name!r}: {error}") from error

    async def drain(self, grace_seconds: float) -> None:
        """Takes no more, and gives back what is not done in time; the server must still listen.

        Args:
            grace_seconds: How long answers on their way may take.
        """
        self._draining.set()
        await asyncio.gather(
            *(self._drain(each, grace_seconds) for each in self._executors.values())
        )
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._executors.clear()
        self._tasks.clear()
        for model in self._models:
            await model.aclose()
        for client in self._clients.values():
            await client.aclose()

    async def _run(self, place: int, agent: str) -> None:
        attempt = 0
        while not self._draining.is_set():
            try:
                if attempt:
                    self._executors[place] = self._make(place, attempt)
                await self._executors[place].run()
            except ToolError as error:
                # A server of tools may come up after this one.
                _LOG.warning("embedded_executor_waits", agent=agent, error=str(error))
            except (RunlaneError, ValueError) as error:
                _LOG.error("embedded_executor_failed", agent=agent, error=str(error))
            except Exception as error:  # noqa: BLE001 - it must not go without a word
                _LOG.error("embedded_executor_failed", agent=agent, error=type(error).__name__)
            else:
                return  # It was drained: by an operator, or with the server.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), _pause(attempt))
            attempt += 1

    @staticmethod
    async def _drain(executor: Executor, grace_seconds: float) -> None:
        try:
            async with asyncio.timeout(grace_seconds):
                await executor.drain()
        except (TimeoutError, RunlaneError) as error:
            _LOG.info(
                "embedded_executor_released", executor_id=executor.executor_id, why=repr(error)
            )
        await executor.aclose(release=True)


def _pause(attempt: int) -> float:
    """Returns how many seconds an agent waits after it failed for the n-th time, from 0."""
    return min(_RETRY_SECONDS, 2.0 ** min(attempt, 10))


def _delegate(config: DelegateConfig) -> Tool:
    """Makes the tool that gives work to another agent."""

    @tool(
        name=config.tool or config.agent,
        description=config.description,
        policy=config.policy,
        agent=config.agent,
    )
    def delegate(task: str) -> str:
        return task

    return delegate


def _mcp_tools(config: McpConfig) -> McpTools:
    token = os.environ.get(config.token_env, "") if config.token_env is not None else ""
    return McpTools(
        command=config.command,
        url=config.url,
        env=config.env,
        headers={"Authorization": f"Bearer {token}"} if token else None,
        policy=config.policy,
        idempotent=config.idempotent,
        prefix=config.prefix,
        timeout=config.timeout_seconds,
    )
