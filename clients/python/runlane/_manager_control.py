"""What a session manager does to a run that waits, is paused, or lost its executor."""

from runlane._client import Client
from runlane._enums import InteractionState
from runlane._interactions import Answer, Interaction, answer_to_pb, not_found
from runlane._models import Answered, Pausing, Restoration
from runlane._run_models import RunResult


class ManagerControl:
    """The part of `SessionManager` that stops, answers and restores runs."""

    _client: Client
    _session_id: str

    def _check_open(self) -> None:
        raise NotImplementedError

    async def _ready(self) -> None:
        raise NotImplementedError

    async def pause(self, run_id: str | None = None, *, request_id: str | None = None) -> Pausing:
        """Stops the live run at its next boundary, or at once where nobody has it.

        Args:
            run_id: Only this run; None: whichever is live.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionIdle: No run is live.
            RunCancelling: Cancellation of the run was requested.
        """
        self._check_open()
        await self._ready()
        return await self._client.pause(self._session_id, run_id=run_id, request_id=request_id)

    async def unpause(self, run_id: str | None = None, *, request_id: str | None = None) -> Pausing:
        """Takes a pause, or the request for one, back.

        Args:
            run_id: Only this run; None: whichever is live.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionIdle: No run is live.
            RunCancelling: Cancellation of the run was requested.
        """
        self._check_open()
        await self._ready()
        return await self._client.unpause(self._session_id, run_id=run_id, request_id=request_id)

    async def resume(
        self,
        answer: Answer,
        interaction: Interaction | str | None = None,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> RunResult:
        """Answers what the run waits for, and waits until it stops again.

        Args:
            answer: As in `Client.answer`: a text for a question, True, False or a mapping
                of verdicts for a permission, a mapping for a form.
            interaction: What is answered, or its id; None: what the session waits for now.
            timeout: Seconds to wait; None: without end.
            request_id: Makes the call idempotent beyond its own repeats.

        Returns:
            The run where it waits once more, was paused, or has ended: `phase` tells.

        Raises:
            InteractionNotFound: The session waits for no answer, or not for this one.
            InteractionConflict: It has another answer.
            InteractionClosed: It ended without an answer.
            TimeoutError: The run has not stopped in time; the answer stands.
        """
        self._check_open()
        await self._ready()
        # Of a proxy it is the run of this session that is waited for, not the one that asks.
        asked = await self._asked(interaction)
        await self.admit_resume(answer, asked, request_id=request_id)
        return await self._client.wait_run(
            asked.run_id, session_id=self._session_id, timeout=timeout, until="stopped"
        )

    async def admit_resume(
        self,
        answer: Answer,
        interaction: Interaction | str | None = None,
        *,
        request_id: str | None = None,
    ) -> Answered:
        """Answers what the run waits for, and returns at once.

        Args:
            answer: As in `resume`.
            interaction: As in `resume`.
            request_id: Makes the call idempotent beyond its own repeats.

        Returns:
            A receipt with the ids of run and interaction; for the question of a child run
            they are its.

        Raises:
            InteractionNotFound: The session waits for no answer, or not for this one.
            InteractionConflict: It has another answer.
            InteractionClosed: It ended without an answer.
        """
        self._check_open()
        await self._ready()
        asked = await self._asked(interaction)
        said = answer_to_pb(answer, asked)
        return await self._client._answer(  # noqa: SLF001 - one package
            asked.run_id, asked.interaction_id, asked.version, said, request_id
        )

    async def _asked(self, interaction: Interaction | str | None) -> Interaction:
        if isinstance(interaction, Interaction):
            return interaction
        state = await self._client.live_state(self._session_id, message_limit=0)
        for found in state.open_interactions:
            if interaction is None or found.interaction_id == interaction:
                # One that was settled meanwhile is left to the server to refuse.
                return await self._client._whole(found) or found  # noqa: SLF001 - one package
        if interaction is not None:
            # One that was answered before: the same answer again is no harm.
            after: str | None = ""
            while after is not None:
                page = await self._client.list_interactions(
                    self._session_id, state=InteractionState.ANSWERED, after=after, limit=1000
                )
                for found in page.items:
                    if found.interaction_id == interaction:
                        return found
                after = page.next_cursor
        what = "an answer" if interaction is None else f"interaction {interaction}"
        raise not_found(f"session {self._session_id} does not wait for {what}")

    async def restore(
        self,
        run_id: str,
        expected_activation_id: str | None = None,
        *,
        force: bool = False,
        request_id: str | None = None,
    ) -> Restoration:
        """Brings back a run whose executor was lost, or is thought to be.

        Args:
            run_id: The run.
            expected_activation_id: The activation that the caller has seen; needed where
                the run is active.
            force: Also where the lease is live: its executor is cut off.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            RunNotFound: There is no such run.
            ActivationMismatch: Another activation is the current one.
        """
        self._check_open()
        await self._ready()
        return await self._client.restore(
            run_id, expected_activation_id, force=force, request_id=request_id
        )
