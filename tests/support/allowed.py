"""What is admitted, tried out: the measure of allowed_commands."""

from runlane_server.core.admission import SUBMIT_COMMANDS, allowed_commands
from runlane_server.core.commands import WithdrawSubmission
from runlane_server.core.context import Context
from runlane_server.core.errors import Refused
from runlane_server.core.machine import decide
from runlane_server.core.model import SessionState
from runlane_server.core.words import Command

from support.steps import (
    Step,
    close,
    delete,
    interrupt,
    pause,
    put,
    reopen,
    reply,
    restore,
    unpause,
)


def pending(state: SessionState) -> str:
    """The input that waits last; where none waits, an id that is none."""
    waiting = state.steers + state.next_runs
    return waiting[-1].submission_id if waiting else "sub_x"


TRIES: dict[Command, Step] = {
    **{command: put("try", mode) for mode, command in SUBMIT_COMMANDS.items()},
    Command.INTERRUPT: interrupt(),
    Command.WITHDRAW: Step(lambda s: WithdrawSubmission(pending(s))),
    Command.CLOSE: close,
    Command.REOPEN: reopen,
    Command.DELETE: delete,
    Command.PAUSE: pause,
    Command.UNPAUSE: unpause,
    Command.RESTORE: restore(),
    Command.ANSWER: reply(),
}


def check_allowed(state: SessionState, context: Context) -> None:
    """Asserts that exactly those commands are allowed that change something."""
    admitted = []
    for command in Command:
        try:
            decision = decide(state, TRIES[command].make(state), context)
        except Refused:
            continue
        if decision.state is not None:
            admitted.append(command)
    if state.run is not None and state.run.proxies and Command.ANSWER not in admitted:
        # A proxy is answered in the session of its question.
        admitted.append(Command.ANSWER)
    assert allowed_commands(state) == admitted
