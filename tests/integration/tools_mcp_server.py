"""A small MCP server, over stdio or over streamable HTTP on a port that it prints."""

import os
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("small")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@server.tool()
def picture() -> Image:
    """Draws."""
    return Image(data=b"pixels", format="png")


@server.tool()
def leave() -> str:
    """Ends the server."""
    os._exit(1)


def serve_http() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        serve_http()
    else:
        server.run("stdio")
