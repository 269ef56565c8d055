"""What operators look at first."""

from runlane_server.app.base import UseCase
from runlane_server.app.views import ExecutorView, OverviewView
from runlane_server.runtime.dispatch import SEEN_SECONDS, ExecutorSeen

COUNT_MAX = 10_000
"""Rows of a kind that are counted."""

LISTED_SECONDS = 3600
"""How long an executor is listed after its last poll ended."""


class Overviews(UseCase):
    """Reads over all sessions, and of what is connected."""

    async def overview(self, namespace: str) -> OverviewView:
        """Counts what there is."""
        services, quotas = self.services, self.services.quotas
        counts = await services.store.counts(namespace, COUNT_MAX)
        if services.follower is not None:
            await services.follower.meet()
        dispatch, now = services.dispatch, services.clock.now()
        queued, oldest = dispatch.queued(namespace)
        return OverviewView(
            counts,
            queued,
            oldest,
            dispatch.leased(namespace),
            len(dispatch.seen_since(namespace, now - SEEN_SECONDS * 1_000_000)),
            services.bus.subscriptions_of(namespace),
            not services.engine.store_away,
            now,
            await quotas.used(namespace) if quotas is not None else [],
        )

    async def list_executors(
        self, namespace: str, after: str, limit: int
    ) -> tuple[list[ExecutorView], str | None]:
        """Lists executors by id; also the id that the next page is after."""
        services, dispatch = self.services, self.services.dispatch
        if self.services.follower is not None:
            await self.services.follower.meet()
        leases = dispatch.leases_by_executor(namespace)
        since = services.clock.now() - LISTED_SECONDS * 1_000_000
        seen = dispatch.seen_since(namespace, 0)
        listed = {name for name, one in seen.items() if one.polling or one.last_poll_time >= since}
        ids = sorted(one for one in listed | leases.keys() if one > after)
        views = []
        for executor_id in ids[:limit]:
            known = seen.get(executor_id, ExecutorSeen())
            views.append(
                ExecutorView(
                    executor_id,
                    sorted(known.agents),
                    known.last_poll_time,
                    known.polling > 0,
                    leases.get(executor_id, 0),
                    (namespace, executor_id) in dispatch.drained,
                )
            )
        return views, views[-1].executor_id if len(ids) > limit else None
