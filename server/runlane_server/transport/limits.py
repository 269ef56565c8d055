"""Limits of the contract that no setting moves, as GetServerInfo shows them."""

from runlane_server.core.model import Rules
from runlane_server.transport.content import CONTENT_BYTES_MAX, METADATA_BYTES_MAX
from runlane_server.transport.paging import PAGE_BYTES_MAX, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from runlane_server.transport.requests import DELTA_TEXT_BYTES_MAX

RECEIVE_BYTES_MAX = 8 * 1024 * 1024
SEND_BYTES_MAX = 4 * 1024 * 1024

CLIENT_PING_SECONDS_MIN = 5
"""A client that pings more often, while nothing is sent to it, is sent away."""

_RULES = Rules()

FIXED_LIMITS: tuple[tuple[str, int, str], ...] = (
    ("content_bytes_max", CONTENT_BYTES_MAX, "bytes"),
    ("content_blocks_max", 256, "items"),
    ("inline_data_bytes_max", 256 * 1024, "bytes"),
    ("metadata_bytes_max", METADATA_BYTES_MAX, "bytes"),
    ("metadata_json_bytes_max", 64 * 1024, "bytes"),
    ("labels_max", 32, "items"),
    ("id_characters_max", 128, "items"),
    ("request_bytes_max", RECEIVE_BYTES_MAX, "bytes"),
    ("page_size_default", PAGE_SIZE_DEFAULT, "items"),
    ("page_size_max", PAGE_SIZE_MAX, "items"),
    ("page_bytes_max", PAGE_BYTES_MAX, "bytes"),
    ("live_messages_max", 200, "items"),
    ("wait_seconds_max", 300, "seconds"),
    ("client_ping_seconds_min", CLIENT_PING_SECONDS_MIN, "seconds"),
    ("lease_seconds_min", 5, "seconds"),
    ("lease_seconds_max", 600, "seconds"),
    ("commit_operations_max", 64, "items"),
    ("delta_text_bytes_max", DELTA_TEXT_BYTES_MAX, "bytes"),
    ("child_depth_max", _RULES.max_child_depth, "items"),
    ("live_child_runs_max", _RULES.max_children, "items"),
    ("open_proxies_max", _RULES.max_proxies, "items"),
    ("summary_bytes_max", 256 * 1024, "bytes"),
)
