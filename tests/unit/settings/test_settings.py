from pathlib import Path

import pytest
from runlane_server import settings as module
from runlane_server.core.quotas import Quota
from runlane_server.quota_settings import default_quota, own_quotas
from runlane_server.settings import (
    Limit,
    OpenAIModelConfig,
    Settings,
    SettingsError,
    is_local,
    load,
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    import os

    for name in list(os.environ):
        if name.startswith("RUNLANE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(*args, **kwargs) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


def test_the_defaults():
    settings = load()
    assert settings.listen == ("127.0.0.1:7480",)
    assert settings.store == "sqlite:runlane.db"
    assert settings.store_path == Path("runlane.db")
    assert settings.agents == ()
    assert settings.default_agent == ""
    assert (settings.max_pending_steers, settings.max_pending_next_runs) == (64, 64)
    assert settings.max_pending_bytes == 8 * 1024 * 1024
    assert settings.linger_milliseconds == 5
    assert settings == Settings()


def test_flags_come_before_the_environment_before_the_file(monkeypatch, tmp_path):
    file = write(
        tmp_path / "r.toml", 'batch_max = 1\nreader_threads = 1\nstreams_max = 1\nstore = "memory"'
    )
    monkeypatch.setenv("RUNLANE_BATCH_MAX", "2")
    monkeypatch.setenv("RUNLANE_READER_THREADS", "2")
    settings = load(file, {"batch_max": 3, "streams_max": None})
    assert settings.batch_max == 3
    assert settings.reader_threads == 2
    assert settings.streams_max == 1
    assert settings.store == "memory"
    assert settings.hot_sessions_max == 10_000


def test_the_file_in_the_working_directory_is_read_unasked(tmp_path):
    assert load().batch_max == 256
    write(tmp_path / "runlane.toml", "batch_max = 7")
    assert load().batch_max == 7
    assert load(write(tmp_path / "other.toml", "")).batch_max == 256


def test_paths_in_the_file_are_relative_to_it(tmp_path):
    file = write(
        tmp_path / "etc" / "r.toml",
        'store = "sqlite:data/x.db"\nlisten = ["unix:run/x.sock", "unix:/abs.sock", "[::1]:1"]',
    )
    settings = load(file)
    assert settings.store_path == tmp_path / "etc" / "data" / "x.db"
    assert settings.listen == (f"unix:{tmp_path}/etc/run/x.sock", "unix:/abs.sock", "[::1]:1")
    assert load(file, {"store": "sqlite:x.db"}).store_path == Path("x.db")


def test_absolute_paths_and_memory_stay(tmp_path):
    assert load(write(tmp_path / "a.toml", 'store = "sqlite:/x.db"')).store == "sqlite:/x.db"
    settings = load(write(tmp_path / "b.toml", 'store = "memory"'))
    assert settings.store == "memory"
    assert settings.store_path is None


def test_lists_in_the_environment_are_comma_separated(monkeypatch):
    monkeypatch.setenv("RUNLANE_LISTEN", "127.0.0.1:1, unix:/x.sock")
    monkeypatch.setenv("RUNLANE_AGENTS", "a,b")
    settings = load()
    assert settings.listen == ("127.0.0.1:1", "unix:/x.sock")
    assert settings.agents == ("a", "b")


def test_other_variables_with_the_prefix_are_left_alone(monkeypatch):
    monkeypatch.setenv("RUNLANE_TARGET", "127.0.0.1:9")
    assert load() == Settings()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("lisen = []", "lisen"),
        ('[[agent]]\nname = "a"\nsytem = ""\nmodel = {kind = "scripted"}', "sytem"),
        ('[[agent]]\nname = "a"\nmodel = {kind = "scripted", nam = "x"}', "nam"),
        (
            '[[agent]]\nname = "a"\nmodel = {kind = "scripted", script = [{answer = "x", gate = "y"}]}',
            "gate",
        ),
        (
            '[[agent]]\nname = "a"\nmodel = {kind = "scripted"}\nlimits = {max_steps = 1}',
            "max_steps",
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_file(tmp_path, text, key):
    file = write(tmp_path / "r.toml", text)
    message = refusal(file)
    assert str(file) in message
    assert key in message
    assert "no such key" in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[agent]\nname = "a"', "agent: is a list of tables: write [[agent]] above each"),
        ('[quota]\nnamespace = "a"', "quota: is a list of tables: write [[quota]]"),
        (
            '[[agent]]\nname = "a"\nmodel = {kind = "scripted"}\n[agent.mcp]\nurl = "http://x"',
            "agent.0.mcp: is a list of tables: write [[agent.mcp]]",
        ),
    ],
)
def test_a_table_with_one_bracket_is_told_to_have_two(tmp_path, text, told):
    assert told in refusal(write(tmp_path / "r.toml", text))


def test_each_mistake_says_where_it_was_read(monkeypatch, tmp_path):
    file = write(tmp_path / "r.toml", "batch_max = 0")
    monkeypatch.setenv("RUNLANE_READER_THREADS", "many")
    lines = refusal(file, {"log_level": "loud", "streams_max": 0}).splitlines()
    assert len(lines) == 4
    assert sum(line.startswith(f"{file}: batch_max: ") for line in lines) == 1
    assert sum(line.startswith("RUNLANE_READER_THREADS: ") for line in lines) == 1
    assert sum(line.startswith("--log-level: ") for line in lines) == 1
    assert sum(line.startswith("--streams-max: ") for line in lines) == 1


def test_a_file_that_cannot_be_read(tmp_path):
    assert "absent.toml" in refusal(tmp_path / "absent.toml")
    assert "no TOML" in refusal(write(tmp_path / "r.toml", "listen = ["))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/x", "unix:x"]
)
def test_local_addresses_need_no_flag(address):
    assert is_local(address)
    assert load(flags={"listen": [address]}).listen == (address,)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_beyond_this_machine_needs_the_flag(address):
    message = refusal(flags={"listen": ["127.0.0.1:1", address]})
    assert "--insecure-listen" in message
    assert address in message
    assert load(flags={"listen": [address], "insecure_listen": True}).listen == (address,)


@pytest.mark.parametrize("address", ["", "x", ":1", "x:", "x:y", "x:65536", "::1:5", "unix:"])
def test_malformed_addresses(address):
    assert "--listen" in refusal(flags={"listen": [address]})


@pytest.mark.parametrize("store", ["", "x.db", "sqlite:", "sqlite::memory:", "postgres://x"])
def test_malformed_stores(store):
    assert "--store" in refusal(flags={"store": store})


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://me:hush-hush@host",
        "postgresql://me:hush-hush@/name",
        "postgresql://me:hush-hush/x@host/name",
        "postgresql://me:1/hush-hush@host/name",
        "postgresql://me:p@ss-hush-hush@host/name",
        "postgresql://me:hush-hush@[host/name",
        "postgresql:me:hush-hush@host/name",
        "mysql://me:hush-hush@host/name",
    ],
)
def test_a_refused_store_is_told_without_its_password(store):
    told = refusal(flags={"store": store})
    assert "--store" in told
    assert "hush" not in told


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_store_on_postgres(scheme):
    settings = load(flags={"store": f"{scheme}://me:hush-hush@host:1/name?sslmode=require"})
    assert settings.on_postgres
    assert settings.store_path is None
    assert "hush" not in repr(settings) + str(settings)
    load(flags={"store": f"{scheme}://me@a:1,b:2/name?target_session_attrs=read-write"})
    load(flags={"store": f"{scheme}:///name?host=/run/postgresql"})


AGENT = """
[[agent]]
name = "helper"
system = "Be brief."
concurrency = 3
limits = {max_model_steps = 5}
[agent.model]
kind = "openai"
name = "some-model"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "SOME_KEY"
"""


def test_an_agent(tmp_path):
    settings = load(write(tmp_path / "r.toml", AGENT))
    (agent,) = settings.agent
    assert (agent.name, agent.system, agent.concurrency) == ("helper", "Be brief.", 3)
    assert isinstance(agent.model, OpenAIModelConfig)
    assert agent.limits.max_model_steps == 5


def test_the_variable_of_a_key_must_be_set(tmp_path):
    settings = load(write(tmp_path / "r.toml", AGENT))
    with pytest.raises(SettingsError, match=r"'helper'.*SOME_KEY.*not set"):
        settings.check({})
    with pytest.raises(SettingsError, match="SOME_KEY"):
        settings.check({"SOME_KEY": ""})
    settings.check({"SOME_KEY": "s"})


def test_two_agents_of_one_name(tmp_path):
    assert "'helper'" in refusal(write(tmp_path / "r.toml", AGENT + AGENT))


def test_agents_must_be_allowed(tmp_path):
    file = write(tmp_path / "r.toml", AGENT)
    assert "'helper'" in refusal(file, {"agents": ["other"]})
    assert "'nobody'" in refusal(flags={"agents": ["other"], "default_agent": "nobody"})
    assert load(file, {"agents": ["helper"]}).agents == ("helper",)


def test_a_key_in_the_wrong_place_is_not_shown(tmp_path):
    text = AGENT.replace('api_key_env = "SOME_KEY"', 'api_key = "sk-secret"')
    message = refusal(write(tmp_path / "r.toml", text))
    assert "api_key" in message
    assert "sk-secret" not in message


def test_limits_have_units():
    limits = load().limits()
    assert Limit("max_pending_bytes", 8388608, "bytes") in limits
    assert Limit("request_keep_seconds", 86400, "seconds") in limits
    assert len({limit.name for limit in limits}) == len(limits)


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load().batch_max = 1


def test_everything_public_has_a_default():
    required = [name for name, field in module.Settings.model_fields.items() if field.is_required()]
    assert required == []


TOOLS = """
[[agent]]
name = "a"
ask_question = true
[agent.model]
kind = "scripted"
script = [{answer = {tool = "t", arguments = {x = 1}}, then = "done"}]
[[agent.mcp]]
command = ["server", "--stdio"]
idempotent = ["t"]
[[agent.mcp]]
url = "https://example.org/mcp"
token_env = "A_TOKEN"
policy = "ask"
[agent.policies]
t = "deny"
"""


def test_tools_of_an_agent(tmp_path):
    settings = load(write(tmp_path / "r.toml", TOOLS))
    (agent,) = settings.agent
    assert agent.ask_question
    assert agent.policies == {"t": "deny"}
    assert agent.model.script[0].answer.arguments == {"x": 1}
    first, second = agent.mcp
    assert (first.command, first.idempotent) == (("server", "--stdio"), ("t",))
    assert (second.url, second.policy) == ("https://example.org/mcp", "ask")
    settings.check({"A_TOKEN": "secret"})
    with pytest.raises(SettingsError, match="A_TOKEN"):
        settings.check({})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('t = "deny"', 't = "maybe"', "agent.0.policies.t"),
        ('policy = "ask"', 'command = ["x"]', "either a command or a url"),
        ("https://", "ftp://", "no http:// or https:// address"),
        ('idempotent = ["t"]', "retries = 1", "no such key"),
    ],
)
def test_wrong_tools_of_an_agent(tmp_path, old, new, told):
    assert told in refusal(write(tmp_path / "r.toml", TOOLS.replace(old, new)))


BARE = {"name": "a", "model": {"kind": "scripted"}}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"auth": "jwt"}, "go together"),
        ({"auth": "passwords"}, "--auth"),
        ({"tls_key": "k"}, "go together"),
        ({"tls_client_ca": "c"}, "needs tls_cert"),
        ({"auth": "keys", "channelz": True}, "channelz"),
        ({"agent": [{**BARE, "namespaces": ["b"]}]}, "only namespace"),
        ({"auth": "keys", "agent": [{**BARE, "namespaces": []}]}, "at least 1 item"),
        ({"listen": ["0.0.0.0:1"], "auth": "keys"}, "tls_cert"),
        ({"listen": ["[::]:1"], "tls_cert": "c", "tls_key": "k"}, "credential"),
    ],
)
def test_access_that_does_not_hold_together_is_refused(flags, words):
    assert words in refusal(flags=flags)


def test_access_that_holds_together(tmp_path):
    tls = {"listen": ["0.0.0.0:1"], "tls_cert": "c", "tls_key": "k"}
    assert load(flags={**tls, "auth": "keys"}).auth == "keys"
    assert load(flags={**tls, "tls_client_ca": "a"}).auth == "none"
    assert load(flags={"listen": ["0.0.0.0:1"], "insecure_listen": True}).auth == "none"
    file = write(
        tmp_path / "etc" / "r.toml",
        'auth = "jwt"\ntls_cert = "c"\ntls_key = "/k"\n'
        '[jwt]\nissuer = "i"\naudience = "a"\njwks = "keys.json"\n',
    )
    settings = load(file)
    assert (settings.tls_cert, settings.tls_key) == (str(tmp_path / "etc" / "c"), "/k")
    assert settings.jwt.jwks == str(tmp_path / "etc" / "keys.json")


def test_variables_of_clients_are_none_of_the_server(monkeypatch):
    for name in ("API_KEY", "NAMESPACE", "TLS_CA"):
        monkeypatch.setenv(f"RUNLANE_{name}", "x")
    assert load() == Settings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("default_agent = 3", "default_agent: should be a valid string"),
        ("[[agent]]\nname = 'x'", "agent.0.model: is missing"),
        (
            "[[agent]]\nname = 'x'\nmodel = { kind = 'openia' }",
            "agent.0.model: kind is 'openia'; there are 'scripted', 'openai'",
        ),
        ("[[agent]]\nname = 'x'\nmodel = { name = 'y' }", "agent.0.model: kind is missing"),
        (
            "[[agent]]\nname = 'x'\nmodel = { kind = 'openai' }",
            "agent.0.model.openai.name: is missing",
        ),
        ("listen = ['bogus']", "listen.0: 'bogus' is neither HOST:PORT, [IPV6]:PORT nor unix:PATH"),
    ],
)
def test_a_mistake_in_the_file_is_a_line_in_plain_words(tmp_path, text, told):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {told}"


def test_a_quota_of_a_namespace_has_the_rest_from_that_of_all(monkeypatch, tmp_path):
    file = write(
        tmp_path / "r.toml",
        "quota_requests_per_second = 5\nquota_sessions_max = 7\n"
        '[[quota]]\nnamespace = "a"\nsessions_max = 0\nburst_seconds = 2\n'
        '[[quota]]\nnamespace = "b"\nevents_per_second = 9\n',
    )
    monkeypatch.setenv("RUNLANE_QUOTA_REQUESTS_PER_SECOND", "6")
    settings = load(file)
    assert default_quota(settings) == Quota(requests_per_second=6, sessions_max=7)
    assert own_quotas(settings) == {
        "a": Quota(requests_per_second=6, burst_seconds=2),
        "b": Quota(requests_per_second=6, events_per_second=9, sessions_max=7),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quota_sessions_max = -1", "quota_sessions_max"),
        ("quota_burst_seconds = 0", "quota_burst_seconds"),
        ('[[quota]]\nnamespace = "A"', "quota.0.namespace"),
        ('[[quota]]\nnamespace = "a"\nsessions = 1', "quota.0.sessions: there is no such key"),
        ('[[quota]]\nnamespace = "a"\n[[quota]]\nnamespace = "a"', "two [[quota]] tables"),
    ],
)
def test_a_quota_that_is_wrong_is_refused(tmp_path, text, told):
    assert told in refusal(write(tmp_path / "r.toml", text))
