"""The calls of SessionService on the live run: pause, answer, complete, restore."""

import asyncio

from runlane.v1 import session_service_pb2 as pb

from runlane_server.app.views import Result
from runlane_server.core.answers import InteractionAnswered
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.words import PromptKind
from runlane_server.store.base import InteractionRow
from runlane_server.transport import interactions, requests, responses
from runlane_server.transport.binding import Call
from runlane_server.transport.forms import check_form
from runlane_server.transport.port import AppPort


class ControlCalls:
    """Converts, calls one use case, converts back."""

    def __init__(self, app: AppPort) -> None:
        self._app = app

    async def pause_run(self, request: pb.PauseRunRequest, call: Call) -> pb.PauseRunResponse:
        """Stops the live run at a boundary."""
        requests.run_target(request)
        asked = (request.session_id, request.run_id)
        done = await self._app.pause_run(call.caller(request.request_id, *asked), *asked)
        return pb.PauseRunResponse(
            receipt=done.answer.receipt,  # type: ignore[arg-type]
            run=responses.run(done.answer.run),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def unpause_run(self, request: pb.UnpauseRunRequest, call: Call) -> pb.UnpauseRunResponse:
        """Takes a pause, or the request for one, back."""
        requests.run_target(request)
        asked = (request.session_id, request.run_id)
        done = await self._app.unpause_run(call.caller(request.request_id, *asked), *asked)
        return pb.UnpauseRunResponse(
            receipt=done.answer.receipt,  # type: ignore[arg-type]
            run=responses.run(done.answer.run),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def answer_interaction(
        self, request: pb.AnswerInteractionRequest, call: Call
    ) -> pb.AnswerInteractionResponse:
        """Answers an open interaction."""
        row = await self._app.find_interaction(
            call.namespace, request.run_id, request.interaction_id
        )
        done = await self._answer(call, request, row, request.version, request.answer)
        return pb.AnswerInteractionResponse(
            interaction=responses.settled_interaction(done.answer.interaction),
            run=responses.run(done.answer.run),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def complete_external(
        self, request: pb.CompleteExternalRequest, call: Call
    ) -> pb.CompleteExternalResponse:
        """Completes an external wait; its token is all that this takes."""
        namespace, row = await self._app.find_external(request.token)
        call = call._replace(namespace=namespace)
        if row.kind is not PromptKind.EXTERNAL:
            raise Refused(Reason.INTERACTION_NOT_FOUND)
        answer = interactions.Answer(external=request.answer)
        done = await self._answer(call, request, row, row.version, answer)
        return pb.CompleteExternalResponse(
            interaction=responses.settled_interaction(done.answer.interaction),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def restore_run(self, request: pb.RestoreRunRequest, call: Call) -> pb.RestoreRunResponse:
        """Brings back a run whose executor was lost."""
        command = requests.restore_run(request)
        done = await self._app.restore_run(call.caller(request.request_id, command), command)
        return pb.RestoreRunResponse(
            run=responses.run(done.answer.run),
            outcome=done.answer.outcome,  # type: ignore[arg-type]
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def _answer(
        self,
        call: Call,
        request: pb.AnswerInteractionRequest | pb.CompleteExternalRequest,
        row: InteractionRow,
        version: int,
        answer: interactions.Answer,
    ) -> Result[InteractionAnswered]:
        by_token = isinstance(request, pb.CompleteExternalRequest)
        schema = interactions.check_answer(row, version, answer, by_token=by_token)
        if schema:
            await asyncio.to_thread(check_form, schema, answer.form.json, "answer.form.json")
        command = interactions.answer(row, version, answer)
        caller = call.caller(request.request_id, row.interaction_id, version, command.hash)
        return await self._app.answer_interaction(caller, row, command)
