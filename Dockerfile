# The steps are the Makefile's own.
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /runlane
COPY . .
RUN make .venv/.run && useradd --create-home runlane && mkdir /data && chown runlane /data
USER runlane
VOLUME /data
EXPOSE 7480
# Nobody is asked for a credential by this command: publish the port on loopback only,
#   docker run --publish 127.0.0.1:7480:7480 --volume runlane:/data runlane
# or give another command, with --auth keys and --tls-cert (docs/operations.md, Access).
CMD [".venv/bin/runlane", "serve", "--listen", "0.0.0.0:7480", "--insecure-listen", "--store", "sqlite:/data/runlane.db"]
