# The server, its terminal and the client, in a virtual environment of their own.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY server server
COPY clients/python clients/python
COPY examples examples
RUN python -m venv /opt/runlane \
    && /opt/runlane/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        -c constraints.txt '.[server,openai,mcp,postgres,jwt,otel]'

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 runlane && install -d -o runlane -g runlane /data
COPY --from=build /opt/runlane /opt/runlane
# Where every command finds them, and not `serve` alone.
ENV PATH="/opt/runlane/bin:$PATH" \
    RUNLANE_LISTEN=0.0.0.0:7480 \
    RUNLANE_INSECURE_LISTEN=true \
    RUNLANE_STORE=sqlite:/data/runlane.db
USER runlane
WORKDIR /data
VOLUME /data
EXPOSE 7480
# Nobody is asked for a credential by this command: publish the port on loopback only,
#   docker run --publish 127.0.0.1:7480:7480 --volume runlane:/data runlane
# or set RUNLANE_AUTH, RUNLANE_TLS_CERT and RUNLANE_TLS_KEY (docs/operations.md, Access).
CMD ["runlane", "serve"]
