"""Settings of a server.

A value is taken from the first place that has it: a flag, the environment
(`RUNLANE_` and the key in capitals; lists are comma-separated), the TOML file,
the default. Paths in the file are relative to it, all others to the working
directory. Every limit has its unit in its name; one without counts items.
"""

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SourceError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

from runlane_server.access_settings import JwtConfig, check_access
from runlane_server.quota_settings import Amount, QuotaConfig, check_quotas

DEFAULT_FILE = "runlane.toml"
"""Read where no other file is named and it is there."""

_PREFIX = "RUNLANE_"
# Of clients, which read them on their own.
_OTHER_VARIABLES = frozenset(
    {
        "RUNLANE_TARGET",
        "RUNLANE_API_KEY",
        "RUNLANE_NAMESPACE",
        "RUNLANE_TLS_CA",
        "RUNLANE_TLS_CLIENT_CERT",
        "RUNLANE_TLS_CLIENT_KEY",
    }
)
_FILES = ("tls_cert", "tls_key", "tls_client_ca")
_TABLES = frozenset({"agent", "quota", "mcp", "delegate"})
_SQLITE = "sqlite:"
_POSTGRES = ("postgresql://", "postgres://")
_UNIX = "unix:"
_NAMESPACE = r"^[a-z0-9][a-z0-9._-]{0,62}$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"
_MEBIBYTE = 1024 * 1024


class SettingsError(Exception):
    """A setting is wrong. The text names it and where it was read, and holds no secret."""


class Limit(NamedTuple):
    """A limit that a client can meet."""

    name: str
    value: int
    unit: Literal["bytes", "seconds", "milliseconds", "items"]


def _split(value: object) -> object:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _address(text: str) -> str:
    """Returns a well-formed address unchanged."""
    if text.startswith(_UNIX):
        if text == _UNIX:
            raise ValueError("unix: needs a path")
        return text
    host, colon, port = text.rpartition(":")
    if not colon or not host or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text!r} is neither HOST:PORT, [IPV6]:PORT nor unix:PATH")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"the port of {text!r} is no number from 0 to 65535")
    return text


def _metrics_address(text: str) -> str:
    """Returns a well-formed address of HTTP unchanged, or nothing."""
    if text.startswith(_UNIX):
        raise ValueError("metrics are served at HOST:PORT")
    return _address(text) if text else text


def _store(text: str) -> str:
    """Returns a well-formed store unchanged."""
    if text == "memory":
        return text
    if text.startswith(_POSTGRES):
        refuse_malformed(text)
        return text
    if not text.startswith(_SQLITE) or text == _SQLITE:
        # What was meant for the address of a database may hold a password.
        shown = f"{text.partition(':')[0]}:..." if ":" in text else text
        raise ValueError(f"{shown!r} is neither sqlite:PATH, postgresql://... nor memory")
    if text.removeprefix(_SQLITE).startswith((":memory:", "file:")):
        raise ValueError("sqlite: takes the path of a file; for a store without one say memory")
    return text


def is_database(store: str) -> bool:
    """Tells whether a store is a PostgreSQL database."""
    return store.startswith(_POSTGRES)


def _refuse_at(text: str) -> None:
    if "@" in text:
        raise ValueError


def refuse_malformed(text: str) -> None:
    """Raises ValueError where the address of a database cannot be read; shows nothing of it."""
    try:
        parts = urlsplit(text)
        # Of a password that is not escaped, what follows its first @ or / is taken for a host or
        # a name.
        _refuse_at(parts.netloc.partition("@")[2] + parts.path)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        # Not the words of the error: they may hold a part of the password.
        raise ValueError(
            "the address of the database cannot be read; in a password, write what is neither a "
            "letter nor a digit as %XX"
        ) from None
    if not (parts.hostname or "host=" in parts.query) or not parts.path.strip("/"):
        raise ValueError("the address of a database is postgresql://USER:PASSWORD@HOST:PORT/NAME")


def is_local(address: str) -> bool:
    """Tells whether only this machine can reach an address."""
    if address.startswith(_UNIX):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Name = Annotated[str, Field(pattern=_NAME)]
Address = Annotated[str, AfterValidator(_address)]
Store = Annotated[str, AfterValidator(_store)]
Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ScriptedCall(_Table):
    """A tool that a scripted model asks for."""

    tool: str = Field(min_length=1, max_length=255)
    arguments: Mapping[str, Any] = {}
    """`{input}` in a text stands for the text of the newest user message."""


class ScriptEntry(_Table):
    """One answer of a scripted model."""

    answer: str | ScriptedCall | tuple[ScriptedCall, ...]
    """What it says, or the tools that it asks for. `{input}` stands for the text of the newest
    user message, `{result}` for the results of the tools that were asked for before."""
    then: str | None = None
    """What it says to the results of the tools that this answer asks for."""
    match: str | None = None
    """Only for a newest user message that holds this."""
    delay_seconds: float = Field(default=0.0, ge=0, le=3600)
    """How long it takes to begin its answer."""


class ScriptedModelConfig(_Table):
    """A model that answers from a script and never leaves the process."""

    kind: Literal["scripted"]
    name: str = Field(default="scripted", min_length=1, max_length=255)
    script: tuple[ScriptEntry, ...] = Field(default=(ScriptEntry(answer="{input}"),), min_length=1)
    """Entries with `match` are tried first; the others are given in turn, again and again."""
    piece_characters: Count = 16
    """How much of an answer is streamed at a time."""


class OpenAIModelConfig(_Table):
    """A model behind an endpoint that speaks OpenAI's chat completions."""

    kind: Literal["openai"]
    name: str = Field(min_length=1, max_length=255)
    """The model, as the endpoint calls it."""
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str | None = None
    """Name of the environment variable that holds the key. None: the endpoint needs no key."""
    timeout_seconds: float = Field(default=120.0, gt=0, le=3600)
    """The longest silence of the endpoint, also within an answer."""

    @field_validator("base_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("is no http:// or https:// address")
        return value


ModelConfig = Annotated[ScriptedModelConfig | OpenAIModelConfig, Field(discriminator="kind")]


Policy = Literal["allow", "ask", "deny"]


class McpConfig(_Table):
    """An MCP server whose tools an agent may use: the tables `[[agent.mcp]]`."""

    command: tuple[str, ...] = ()
    """A program and its arguments, spoken to through its stdin and stdout."""
    url: str = ""
    """Or where a server is that speaks streamable HTTP."""
    env: Mapping[str, str] = {}
    """Variables for the program."""
    token_env: str | None = None
    """Name of the environment variable that holds the bearer token of every HTTP request."""
    policy: Policy = "allow"
    """Whether its tools are run, ask a person first, or are refused."""
    idempotent: bool | tuple[str, ...] = False
    """Whether its tools may be run again where a result was lost: all, or those named."""
    prefix: str = Field(default="", max_length=64)
    """Begins the names of its tools."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=86_400)
    """How long a call may take. None: no limit."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("url is no http:// or https:// address")
        return self


class DelegateConfig(_Table):
    """Another agent that an agent may give work to: the tables `[[agent.delegate]]`."""

    agent: Name
    """The other agent; whoever runs it."""
    description: str = Field(min_length=1, max_length=4096)
    """What it is good for, for the model."""
    tool: str = Field(default="", max_length=255)
    """The name of the tool that the model asks for. Empty: the agent's."""
    policy: Policy = "allow"
    """Whether it may be asked, or a person is asked first, or it is refused."""


class AgentLimits(_Table):
    """Budgets of an agent's runs, where their options name none."""

    max_model_steps: int | None = Field(default=None, ge=1, le=10_000)


class AgentConfig(_Table):
    """An agent that the server's own executor runs."""

    name: Name
    """What executors poll for and runs name."""
    model: ModelConfig
    system: str = ""
    """Instructions that every request to the model begins with."""
    concurrency: int = Field(default=8, ge=1, le=1000)
    """How many of its runs go on at the same time, in each namespace."""
    namespaces: tuple[Annotated[str, Field(pattern=_NAMESPACE)], ...] = Field(
        ("default",), min_length=1
    )
    """The namespaces whose runs may name it."""
    limits: AgentLimits = AgentLimits()
    mcp: tuple[McpConfig, ...] = ()
    """MCP servers whose tools it may use."""
    delegate: tuple[DelegateConfig, ...] = ()
    """Agents that it may give work to: each call is a child run."""
    ask_question: bool = False
    """Whether the model may ask the user, and the run then waits for the answer."""
    policies: Mapping[str, Policy] = {}
    """Policies by tool, in place of those of their servers."""


class Settings(BaseSettings):
    """What a server is started with."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    listen: Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_split)] = Field(
        ("127.0.0.1:7480",), min_length=1
    )
    """Where to listen: HOST:PORT (port 0: any free one), [IPV6]:PORT or unix:PATH."""
    insecure_listen: bool = False
    """Listen beyond this machine even where nobody is asked for a credential, or without TLS."""
    auth: Literal["none", "keys", "jwt"] = "none"
    """Who may call: whoever reaches the server, whoever has an API key, or also whoever has a
    token of the issuer in `[jwt]`."""
    jwt: JwtConfig | None = None
    """The issuer whose tokens are taken with auth = "jwt": the table `[jwt]`."""
    tls_cert: str = ""
    """A file with the server's certificate and those that lead to its authority, PEM."""
    tls_key: str = ""
    """A file with its private key, PEM."""
    tls_client_ca: str = ""
    """A file with authorities; every client must then show a certificate of one of them."""
    reflection: bool = True
    """Serve reflection, to whoever asks."""
    store: Store = Field("sqlite:runlane.db", repr=False)
    """sqlite:PATH, postgresql://..., or memory: gone with the process."""

    drain_grace_seconds: float = Field(default=10.0, ge=0, le=3600)
    """How long calls in flight may take after the server was asked to stop."""
    agent_grace_seconds: float = Field(default=5.0, ge=0, le=3600)
    """How long runs of the server's own agents may take to end before that; the others are
    given back."""
    linger_milliseconds: float = Field(default=5.0, ge=0, le=1000)
    """How long a write may wait under load for others to share its transaction."""
    batch_max: int = Field(default=256, ge=1, le=10_000)
    """Writes in one transaction."""
    hot_sessions_max: int = Field(default=10_000, ge=1)
    """Sessions whose state is kept in memory."""
    streams_max: int = Field(default=10_000, ge=1)
    """Event streams that are open at the same time."""
    feeds_max: int = Field(default=64, ge=1, le=10_000)
    """Feeds of whole namespaces that are open at the same time."""
    max_stream_seconds: int = Field(default=3600, ge=1, le=86_400)
    """How long an event stream is open before the server ends it: its reader goes on by its
    cursor."""
    imports_max: int = Field(default=4, ge=1, le=1000)
    """Imports of sessions that go on at the same time; each is kept in memory until it is whole."""
    import_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """Bytes of an archive that is imported."""
    import_messages_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Messages of an archive that is imported: they are written in one transaction."""
    import_runs_max: int = Field(default=5_000, ge=1, le=1_000_000)
    """Runs of an archive that is imported."""
    reader_threads: int = Field(default=4, ge=1, le=64)
    """Threads that read a file."""
    postgres_connections: int = Field(default=8, ge=1, le=256)
    """Connections that read a PostgreSQL database; one more writes, and one hears other servers."""
    postgres_statement_timeout_seconds: float = Field(default=30.0, ge=1, le=3600)
    """How long a statement may take on PostgreSQL."""
    poll_interval_seconds: float = Field(default=1.0, ge=0.05, le=4)
    """How often a server on PostgreSQL looks what others did, where it is not told. What servers
    tell each other of readers and executors stands a few seconds: it is looked for more often."""

    default_agent: Annotated[str, Field(pattern=f"^$|{_NAME}")] = ""
    """Agent of runs for which neither the run nor the session names one."""
    agents: Annotated[tuple[Name, ...], NoDecode, BeforeValidator(_split)] = ()
    """Agents that runs may name. Empty: every name, whether or not it is polled for."""

    max_pending_steers: int = Field(default=64, ge=1, le=10_000)
    """Steers that wait in a session."""
    max_pending_next_runs: int = Field(default=64, ge=1, le=10_000)
    """Next runs that wait in a session."""
    max_pending_bytes: int = Field(default=8 * _MEBIBYTE, ge=1)
    """Content that waits in a session."""
    max_model_steps: int = Field(default=20, ge=1, le=10_000)
    """Model steps of a run whose options name no number."""
    cancel_grace_seconds: int = Field(default=30, ge=0, le=600)
    """How long an executor may take to settle a cancelled run whose options do not say."""
    request_keep_hours: int = Field(default=24, ge=1)
    """How long a request_id is known after what it made has settled."""
    sweep_delay_seconds: float = Field(default=60.0, ge=0)
    """How long after it is due the rest of a deletion may wait."""
    # A client takes a stream for dead that is silent for a minute.
    bookmark_seconds: float = Field(default=15.0, gt=0, le=45)
    """How often an idle event stream says where it is."""
    max_connection_age_seconds: int = Field(default=0, ge=0)
    """Connections older than this are asked to come again. 0: never."""
    max_connection_age_grace_seconds: int = Field(default=300, ge=1, le=86_400)
    """How long calls may go on on a connection that was asked; streams and waits end before."""
    keepalive_seconds: int = Field(default=30, ge=1, le=7200)
    """After how much silence a client is asked for a sign of life."""
    keepalive_timeout_seconds: int = Field(default=10, ge=1, le=600)
    """How long it may take to give one; then its connection is dropped."""

    quota_requests_per_second: Amount = 0
    """Calls of a namespace. 0: no limit, as with all quotas."""
    quota_events_per_second: Amount = 0
    """Events that the calls of a namespace append."""
    quota_burst_seconds: int = Field(default=10, ge=1, le=3600)
    """So many seconds' worth of a rate may come at once."""
    quota_sessions_max: Amount = 0
    """Sessions of a namespace."""
    quota_open_streams_max: Amount = 0
    """Event streams of a namespace that are open on this server."""
    quota_stored_bytes_max: Amount = 0
    """Bytes of a namespace's messages, waiting input and events."""
    quota: tuple[QuotaConfig, ...] = ()
    """Quotas of single namespaces: the tables `[[quota]]`."""

    metrics_listen: Annotated[str, AfterValidator(_metrics_address)] = ""
    """Where to serve metrics for Prometheus: HOST:PORT. Empty: nowhere."""
    otel: bool = False
    """Export traces by OpenTelemetry; the standard OTEL_ variables say where to, and which."""
    channelz: bool = False
    """Serve gRPC's channelz."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    agent: tuple[AgentConfig, ...] = ()
    """Agents that the server's own executor runs: the tables `[[agent]]`."""

    @model_validator(mode="after")
    def _hold_together(self) -> Self:
        check_access(self, [address for address in self.listen if not is_local(address)])
        if self.metrics_listen and not is_local(self.metrics_listen) and not self.insecure_listen:
            raise ValueError(
                f"{self.metrics_listen} can be reached from other machines; to serve metrics there "
                "all the same say --insecure-listen"
            )
        check_quotas(self.quota)
        names = [agent.name for agent in self.agent]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two [[agent]] tables are named {name!r}")
        allowed = self.agents
        if allowed:
            for name in [*names, *([self.default_agent] if self.default_agent else [])]:
                if name not in allowed:
                    raise ValueError(f"agent {name!r} is not among `agents`, so no run may name it")
        return self

    @property
    def store_path(self) -> Path | None:
        """The file of the store; None where it is none."""
        if self.store.startswith(_SQLITE):
            return Path(self.store.removeprefix(_SQLITE))
        return None

    @property
    def on_postgres(self) -> bool:
        """Whether the store is a PostgreSQL database."""
        return is_database(self.store)

    def limits(self) -> list[Limit]:
        """Returns the limits that a client can meet."""
        return [
            Limit("max_pending_steers", self.max_pending_steers, "items"),
            Limit("max_pending_next_runs", self.max_pending_next_runs, "items"),
            Limit("max_pending_bytes", self.max_pending_bytes, "bytes"),
            Limit("max_model_steps", self.max_model_steps, "items"),
            Limit("streams_max", self.streams_max, "items"),
            Limit("feeds_max", self.feeds_max, "items"),
            Limit("max_stream_seconds", self.max_stream_seconds, "seconds"),
            Limit("imports_max", self.imports_max, "items"),
            Limit("import_bytes_max", self.import_bytes_max, "bytes"),
            Limit("import_messages_max", self.import_messages_max, "items"),
            Limit("import_runs_max", self.import_runs_max, "items"),
            Limit("cancel_grace_seconds", self.cancel_grace_seconds, "seconds"),
            Limit("request_keep_seconds", self.request_keep_hours * 3600, "seconds"),
            Limit("bookmark_milliseconds", round(self.bookmark_seconds * 1000), "milliseconds"),
            Limit("max_connection_age_seconds", self.max_connection_age_seconds, "seconds"),
            Limit(
                "max_connection_age_grace_seconds",
                self.max_connection_age_grace_seconds,
                "seconds",
            ),
        ]

    def check(self, environ: Mapping[str, str] | None = None) -> None:
        """Checks what only shows at the start: that every key is where its agent says.

        Raises:
            SettingsError: A variable that an `api_key_env` names is not set.
        """
        variables = os.environ if environ is None else environ
        for agent in self.agent:
            for server in agent.mcp:
                if server.token_env is not None and not variables.get(server.token_env):
                    raise SettingsError(
                        f"agent {agent.name!r}: the environment variable {server.token_env}, "
                        "named by mcp.token_env, is not set"
                    )
            model = agent.model
            if not isinstance(model, OpenAIModelConfig) or model.api_key_env is None:
                continue
            if not variables.get(model.api_key_env):
                raise SettingsError(
                    f"agent {agent.name!r}: the environment variable {model.api_key_env}, named "
                    "by model.api_key_env, is not set"
                )


def load(
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads the settings from all places.

    Args:
        config: The file; None: `runlane.toml` in the working directory, if it is there.
        flags: What the command line said, by key; a value of None says nothing.

    Raises:
        SettingsError: A setting, or the file, is wrong.
    """
    _refuse_unknown(os.environ)
    path = config if config is not None else Path(DEFAULT_FILE)
    table = _read(path) if config is not None or path.exists() else {}
    given = {key: value for key, value in (flags or {}).items() if value is not None}

    class FromAllPlaces(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del dotenv_settings, file_secret_settings
            return init_settings, env_settings, InitSettingsSource(settings_cls, table)

    try:
        loaded = FromAllPlaces(**given)
    except ValidationError as error:
        raise SettingsError(_describe(error, given, table, path)) from None
    except SourceError as error:
        raise SettingsError(str(error)) from None
    return Settings.model_construct(**dict(loaded))


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """Refuses a variable of ours that no setting has: it was meant for one."""
    known = {_PREFIX + name.upper() for name in Settings.model_fields} | _OTHER_VARIABLES
    for name in environ:
        if name.upper().startswith(_PREFIX) and name.upper() not in known:
            raise SettingsError(f"{name}: there is no such setting")


def _read(path: Path) -> dict[str, Any]:
    """Reads the file and makes its paths relative to it."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is no TOML: {error}") from None
    folder = path.absolute().parent
    listen = table.get("listen")
    if isinstance(listen, str):
        listen = _split(listen)
    if isinstance(listen, list):
        table["listen"] = [_beside(folder, item, _UNIX) for item in listen]
    if "store" in table:
        table["store"] = _beside(folder, table["store"], _SQLITE)
    for name in _FILES:
        if isinstance(table.get(name), str) and table[name]:
            table[name] = str(folder / table[name])
    issuer = table.get("jwt")
    if isinstance(issuer, dict) and "://" not in str(issuer.get("jwks", "://")):
        issuer["jwks"] = str(folder / str(issuer["jwks"]))
    return table


def _beside(folder: Path, value: object, prefix: str) -> object:
    if not isinstance(value, str) or not value.startswith(prefix) or value == prefix:
        return value
    rest = value.removeprefix(prefix)
    return value if rest.startswith(":") else f"{prefix}{folder / rest}"


def _describe(
    error: ValidationError, given: Mapping[str, Any], table: Mapping[str, Any], path: Path
) -> str:
    """Returns a line for each mistake, with its key and where that was read."""
    lines = []
    mistakes = error.errors(include_url=False, include_input=False)
    # A list whose items are wrong is also too short: without them.
    above = {mistake["loc"][:end] for mistake in mistakes for end in range(len(mistake["loc"]))}
    for mistake in mistakes:
        location = mistake["loc"]
        if mistake["type"] == "too_short" and location in above:
            continue
        key = ".".join(str(part) for part in location)
        first = str(location[0]) if location else ""
        text = _in_words(mistake)
        if not first:
            lines.append(text)
        elif first in given:
            lines.append(f"--{first.replace('_', '-')}: {text}")
        elif _PREFIX + first.upper() in {name.upper() for name in os.environ}:
            lines.append(f"{_PREFIX}{key.upper()}: {text}")
        elif first in table:
            lines.append(f"{path}: {key}: {text}")
        else:
            lines.append(f"{key}: {text}")
    return "\n".join(lines)


def _in_words(mistake: "ErrorDetails") -> str:
    """Returns what is wrong with a value, without the terms of the library that found it."""
    context = mistake.get("ctx", {})
    match mistake["type"]:
        case "extra_forbidden":
            return "there is no such key"
        case "missing":
            return "is missing"
        case "tuple_type" if mistake["loc"][-1] in _TABLES:
            path = ".".join(part for part in mistake["loc"] if isinstance(part, str))
            return f"is a list of tables: write [[{path}]] above each"
        case "union_tag_not_found":
            return "kind is missing"
        case "union_tag_invalid":
            return f"kind is {context['tag']!r}; there are {context['expected_tags']}"
    text = mistake["msg"].removeprefix("Value error, ")
    return text.replace("Input should be", "should be", 1)
