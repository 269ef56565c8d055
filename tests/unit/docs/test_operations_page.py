"""docs/operations.md against the settings and the command line."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from runlane_server.access_settings import JwtConfig
from runlane_server.app.views import Gauges, ServerInfoView
from runlane_server.cli._app import app
from runlane_server.observability.metrics import families
from runlane_server.quota_settings import QuotaConfig
from runlane_server.runtime.stats import Stats
from runlane_server.settings import Settings, load

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```toml\n(.*?)^```$", README + PAGE, re.MULTILINE | re.DOTALL)
GAUGES = [one.name for one in fields(Gauges) if one.name not in {"writes_waiting", "store_away"}]
NOT_SETTINGS = {"config", "help"}


def rows_after(head: str) -> list[list[str]]:
    """Returns the rows of the table that begins with a head."""
    lines = PAGE[PAGE.index(head) :].split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(row) for row in rows}) == 1, "every row has the same cells"
    return rows[2:]


def plain(cell: str) -> str:
    return cell.strip("`")


SETTINGS = {plain(row[0]): row for row in rows_after("| key in TOML |")}


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    import os

    for name in list(os.environ):
        if name.startswith("RUNLANE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def flags() -> dict[str, str]:
    """Returns the flags of `runlane serve` by the setting they are for."""
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {
        parameter.name: parameter.opts[0]
        for parameter in serve.params
        if parameter.name not in NOT_SETTINGS
    }


def test_the_table_has_every_setting_in_order():
    assert list(SETTINGS) == list(Settings.model_fields)


@pytest.mark.parametrize("key", list(Settings.model_fields))
def test_a_setting_has_its_default_its_environment_and_its_unit(key):
    _, _, variable, default, unit, meaning = SETTINGS[key]
    value = Settings.model_fields[key].default
    assert json.loads(plain(default)) == (list(value) if isinstance(value, tuple) else value)
    # Tables have no form that fits a variable.
    assert plain(variable) == ("" if key in {"agent", "jwt", "quota"} else f"RUNLANE_{key.upper()}")
    expected = next((word for word in UNITS if key.removesuffix("_max").endswith(f"_{word}")), None)
    if expected is None and type(value) is int:
        expected = "items"
    assert unit == (expected or "")
    assert meaning


UNITS = ("seconds", "milliseconds", "hours", "bytes")


def test_the_table_has_the_flags_of_serve():
    told = {key: plain(row[1]) for key, row in SETTINGS.items() if row[1]}
    assert told == flags()


@pytest.mark.parametrize(
    "key", [key for key, field in Settings.model_fields.items() if type(field.default) is int]
)
def test_the_environment_is_read(key, monkeypatch):
    default = Settings.model_fields[key].default
    monkeypatch.setenv(plain(SETTINGS[key][2]), str(default + 1))
    assert getattr(load(), key) == default + 1


@pytest.mark.parametrize("text", SHOWN)
def test_a_file_that_is_shown_can_be_read(text, tmp_path):
    path = tmp_path / "shown.toml"
    path.write_text(text, encoding="utf-8")
    settings = load(path)
    settings.check({"MODEL_KEY": "k", "OPENAI_API_KEY": "k"})
    assert settings.agent or settings.quota
    assert tomllib.loads(text).keys() <= Settings.model_fields.keys()


def test_the_keys_of_agents_are_all_told():
    import runlane_server.settings as module

    told = {plain(row[0]) for row in rows_after("| key of `[[agent]]` |")}
    fields = set(module.AgentConfig.model_fields) - {"limits"}
    assert told == fields | {f"limits.{key}" for key in module.AgentLimits.model_fields}
    rows = {plain(row[0]): row for row in rows_after("| key of `model` |")}
    openai = set(module.OpenAIModelConfig.model_fields)
    scripted = set(module.ScriptedModelConfig.model_fields)
    assert {key for key, row in rows.items() if row[1] in {"openai", "both"}} == openai
    assert {key for key, row in rows.items() if row[1] in {"scripted", "both"}} == scripted
    servers = {plain(row[0]) for row in rows_after("| key of `[[agent.mcp]]` |")}
    assert servers == set(module.McpConfig.model_fields)


def test_the_keys_of_a_quota_are_all_told():
    rows = {plain(row[0]): plain(row[1]) for row in rows_after("| key of `[[quota]]` |")}
    assert rows.keys() == QuotaConfig.model_fields.keys()
    assert rows.pop("namespace") == "required"
    assert rows == {key: f"quota_{key}" for key in rows}
    assert set(rows.values()) | {"quota"} == {
        key for key in Settings.model_fields if key.startswith("quota")
    }


def test_the_keys_of_an_issuer_are_all_told():
    rows = {plain(row[0]): plain(row[1]) for row in rows_after("| key of `[jwt]` |")}
    assert rows.keys() == JwtConfig.model_fields.keys()
    for name, field in JwtConfig.model_fields.items():
        told = None if rows[name] == "required" else json.loads(rows[name])
        assert told == (None if field.is_required() else json.loads(json.dumps(field.default)))


LOGGED = re.compile(r'\b_?log\.(info|warning|error|exception)\(\s*"([^"]+)"', re.IGNORECASE)


def test_the_table_of_logs_has_every_line_with_its_level():
    logged = {
        (line, level.replace("exception", "error"))
        for path in sorted((ROOT / "server" / "runlane_server").rglob("*.py"))
        for level, line in LOGGED.findall(path.read_text(encoding="utf-8"))
    }
    told = {(plain(row[0]), row[1]) for row in rows_after("| line | level | meaning |")}
    assert told == logged


def test_the_table_of_metrics_has_every_metric_with_its_type_and_labels():
    gauges = Gauges(1, store_away=False, **dict.fromkeys(GAUGES, 1))
    info, stats = ServerInfoView("1", "sqlite", True, "sto_1", 1, [], []), Stats()
    stats.called("Submit", "OK", 0.1)
    made = {}
    for family in families(gauges, info, stats):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = [label for label in family.samples[0].labels if label != "le"]
        made[f"{name}{{{', '.join(labels)}}}" if labels else name] = family.type
    told = {plain(row[0]): row[1] for row in rows_after("| metric | type | meaning |")}
    assert told == made


@pytest.mark.parametrize("name", ["compose.yaml", "compose-postgres.yaml"])
def test_what_the_compose_files_set_are_settings(name):
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    named = re.findall(r"RUNLANE_(\w+): ", text)
    assert named
    assert {name.lower() for name in named} <= Settings.model_fields.keys()


def test_the_limits_of_the_server_are_told_as_settings():
    told = {key.removesuffix("_seconds").removesuffix("_hours") for key in SETTINGS}
    for limit in Settings().limits():
        name = limit.name.removesuffix("_seconds").removesuffix("_milliseconds")
        assert name in told, limit
