import sys
from dataclasses import replace

import pytest
from runlane import (
    Message,
    MessageAuthor,
    MessageRole,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    StreamingModel,
    TextBlock,
    ToolOutcome,
    ToolResultBlock,
    Usage,
)
from runlane_server.executors import EMBEDDED_PREFIX, EmbeddedExecutor
from runlane_server.executors.models import OpenAIModel, ScriptedModel, build_model
from runlane_server.settings import (
    AgentConfig,
    OpenAIModelConfig,
    ScriptedModelConfig,
    ScriptEntry,
    SettingsError,
)


def request(*texts: str) -> ModelRequest:
    """Makes a request; texts are of the user, of the model, of the user, ..."""
    messages = tuple(
        Message(
            number=index + 1,
            session_id="s",
            run_id="r",
            role=MessageRole.ASSISTANT if index % 2 else MessageRole.USER,
            author=MessageAuthor.MODEL if index % 2 else MessageAuthor.INPUT,
            step=0,
            content=(TextBlock(text=text),),
            submission_id="",
            model_stream_id="",
            model="",
            create_time=None,
            metadata={},
        )
        for index, text in enumerate(texts)
    )
    return ModelRequest("a", "", messages, "", {}, "r", "s", 1, 1, "m")


async def ask(model: StreamingModel, *texts: str) -> str:
    *pieces, response = [item async for item in model.stream(request(*texts))]
    assert isinstance(response, ModelResponse)
    assert all(isinstance(piece, ModelDelta) for piece in pieces)
    assert "".join(piece.text for piece in pieces) == response.text
    return response.text


@pytest.mark.asyncio
async def test_answers_are_given_in_turn_again_and_again():
    model = ScriptedModel(["one", "two"])
    assert [await ask(model, "x") for _ in range(3)] == ["one", "two", "one"]


@pytest.mark.asyncio
async def test_a_match_comes_first_and_moves_no_turn():
    model = ScriptedModel(["one", ScriptEntry(answer="sunny", match="weather"), "two"])
    assert await ask(model, "hello") == "one"
    assert await ask(model, "the weather?") == "sunny"
    assert await ask(model, "weather", "rain", "bye") == "two"


@pytest.mark.asyncio
async def test_the_input_is_put_in():
    model = ScriptedModel(["you said {input}"])
    assert await ask(model, "first", "answer", "{input} and 5 {x}") == (
        "you said {input} and 5 {x}"
    )
    assert await ask(model) == "you said "


@pytest.mark.asyncio
async def test_where_nothing_matches_the_answer_is_empty():
    model = ScriptedModel([ScriptEntry(answer="sunny", match="weather")])
    assert await ask(model, "hello") == ""


@pytest.mark.asyncio
async def test_pieces_and_usage():
    model = ScriptedModel(["一二三四五"], piece_characters=2, name="demo")
    *pieces, response = [item async for item in model.stream(request("a b"))]
    assert [piece.text for piece in pieces] == ["一二", "三四", "五"]
    assert response == ModelResponse(
        text="一二三四五", usage=Usage(input_tokens=2, output_tokens=1), model="demo"
    )


def test_an_empty_script():
    with pytest.raises(ValueError, match="at least one"):
        ScriptedModel([])


@pytest.mark.asyncio
async def test_an_answer_takes_its_time(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("runlane_server.executors.models.scripted.asyncio.sleep", sleep)
    model = ScriptedModel([ScriptEntry(answer="late", delay_seconds=60), "at once"])
    assert await ask(model, "x") == "late"
    assert await ask(model, "x") == "at once"
    assert slept == [60]


@pytest.mark.asyncio
async def test_the_factory_makes_a_scripted_model():
    script = (ScriptEntry(answer="hi"),)
    model = build_model(ScriptedModelConfig(kind="scripted", script=script))
    assert isinstance(model, ScriptedModel)
    assert await ask(model, "x") == "hi"
    await model.aclose()


@pytest.mark.asyncio
async def test_without_a_script_the_input_comes_back():
    assert await ask(build_model(ScriptedModelConfig(kind="scripted")), "hello") == "hello"


OPENAI = OpenAIModelConfig(kind="openai", name="m", api_key_env="SOME_KEY")


@pytest.mark.asyncio
async def test_the_factory_makes_an_openai_model():
    model = build_model(OPENAI, environ={"SOME_KEY": "sk-x"})
    assert isinstance(model, OpenAIModel)
    assert "sk-x" not in repr(model)
    await model.aclose()
    keyless = OpenAIModelConfig(kind="openai", name="m", base_url="http://127.0.0.1:9/v1")
    await build_model(keyless, environ={}).aclose()


@pytest.mark.parametrize("environ", [{}, {"SOME_KEY": ""}])
def test_a_key_that_is_not_set(environ):
    with pytest.raises(SettingsError, match="SOME_KEY"):
        build_model(OPENAI, environ=environ)


def test_a_missing_sdk_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(SettingsError, match=r"runlane\[openai\]"):
        build_model(OPENAI, environ={"SOME_KEY": "sk-x"})


def test_the_embedded_executor_names_itself_so():
    agent = AgentConfig(name="a", model=ScriptedModelConfig(kind="scripted"))
    with pytest.raises(ValueError, match=EMBEDDED_PREFIX):
        EmbeddedExecutor("unix:x", [agent], "other-1")


def test_the_embedded_executor_checks_its_models_at_once(monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(SettingsError, match="SOME_KEY"):
        EmbeddedExecutor("unix:x", [AgentConfig(name="a", model=OPENAI)], f"{EMBEDDED_PREFIX}1")


def after(run_id: str, *contents) -> ModelRequest:
    """Makes the request after some messages: texts of the user, and results of tools."""
    made = request(*[""] * (2 * len(contents) - 1))
    messages = [
        message.model_copy(
            update={
                "role": MessageRole.USER if isinstance(content, str) else MessageRole.TOOL,
                "content": (TextBlock(text=content) if isinstance(content, str) else content,),
            }
        )
        for message, content in zip(made.messages, contents, strict=False)
    ]
    return replace(made, messages=tuple(messages), run_id=run_id, step=len(contents))


def result(text: str) -> ToolResultBlock:
    return ToolResultBlock(
        tool_call_id="c", outcome=ToolOutcome.OK, content=(TextBlock(text=text),)
    )


async def answer_of(model: ScriptedModel, asked: ModelRequest) -> ModelResponse:
    return [item async for item in model.stream(asked)][-1]


@pytest.mark.asyncio
async def test_a_script_asks_for_tools_and_says_what_came_of_them():
    look = {"tool": "look", "arguments": {"for": "{input}", "deep": ["{input}", 1]}}
    script = [
        ScriptEntry.model_validate(entry)
        for entry in (
            {"match": "cat", "answer": look, "then": "{input}: {result}"},
            {"answer": [look, {"tool": "rest"}]},
            {"answer": "so {result}"},
        )
    ]
    model = ScriptedModel(script)
    asked = await answer_of(model, after("r1", "a cat"))
    (call,) = asked.tool_calls
    assert (call.name, call.tool_call_id) == ("look", "call_1_1")
    assert call.arguments == {"for": "a cat", "deep": ["a cat", 1]}
    assert (asked.text, asked.finish_reason) == ("", "tool_calls")
    said = await answer_of(model, after("r1", "a cat", result("grey")))
    assert (said.text, said.tool_calls) == ("a cat: grey", ())
    # A process that has not asked itself says the same.
    other = await answer_of(ScriptedModel(script), after("r1", "a cat", result("grey")))
    assert other.text == "a cat: grey"
    several = await answer_of(model, after("r2", "dog"))
    assert [one.tool_call_id for one in several.tool_calls] == ["call_1_1", "call_1_2"]
    both = await answer_of(model, after("r2", "dog", result("x"), result("y")))
    assert both.text == "so x\ny"
