"""The server's own executor: agents of the settings, over the port that all executors use."""

import asyncio
from collections.abc import Iterable

import structlog
from runlane import Agent, Client, Executor
from runlane.errors import RunlaneError

from runlane_server.executors.models import Gates, ServerModel, build_model
from runlane_server.settings import AgentConfig

EMBEDDED_PREFIX = "embedded-"
"""How the id of every embedded executor begins: its leases end with its server."""

_LOG = structlog.get_logger(__name__)


class EmbeddedExecutor:
    """Runs the agents of the settings.

    Each agent has an executor of its own, so that a busy one leaves the others their places.

    Args:
        target: Where the server is; a private socket of it.
        agents: The agents.
        executor_id: Begins with `EMBEDDED_PREFIX`; never used before.
        gates: Gates of scripted models.

    Raises:
        ValueError: The id does not begin so.
        SettingsError: A model cannot be made.
    """

    def __init__(
        self,
        target: str,
        agents: Iterable[AgentConfig],
        executor_id: str,
        *,
        gates: Gates | None = None,
    ) -> None:
        if not executor_id.startswith(EMBEDDED_PREFIX):
            raise ValueError(f"{executor_id!r} does not begin with {EMBEDDED_PREFIX!r}")
        self._target = target
        self._executor_id = executor_id
        self._configs = tuple(agents)
        # Made here, so that what is wrong with one is known before the server takes calls.
        self._models: list[ServerModel] = [
            build_model(config.model, gates=gates) for config in self._configs
        ]
        self._client: Client | None = None
        self._executors: list[Executor] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to take activations; the server must listen."""
        self._client = Client(self._target, client_name="embedded")
        for index, (config, model) in enumerate(zip(self._configs, self._models, strict=True), 1):
            executor = Executor(
                self._client,
                Agent(
                    name=config.name,
                    model=model,
                    system=config.system,
                    model_name=config.model.name,
                ),
                executor_id=f"{self._executor_id}-{index}",
                concurrency=config.concurrency,
            )
            self._executors.append(executor)
            self._tasks.append(asyncio.create_task(self._run(config.name, executor)))

    async def drain(self, grace_seconds: float = 5.0) -> None:
        """Takes no more, and gives back what is not done in time; the server must still listen.

        Args:
            grace_seconds: How long answers on their way may take.
        """
        await asyncio.gather(*(self._drain(each, grace_seconds) for each in self._executors))
        await asyncio.gather(*self._tasks)
        self._executors.clear()
        self._tasks.clear()
        for model in self._models:
            await model.aclose()
        if self._client is not None:
            await self._client.aclose()

    @staticmethod
    async def _run(agent: str, executor: Executor) -> None:
        try:
            await executor.run()
        except RunlaneError as error:
            _LOG.error("embedded_executor_failed", agent=agent, error=str(error))

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
