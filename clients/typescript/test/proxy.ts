// A TCP proxy that cuts connections.
import { createServer, connect, type Server as TcpServer, type Socket } from "node:net";
import { once } from "node:events";
import type { AddressInfo } from "node:net";

/** Passes bytes on to a server; each connection is cut after as many bytes as `budget` says. */
export class CuttingProxy {
  cuts = 0;
  readonly #target: string;
  readonly #budget: () => number;
  readonly #server: TcpServer;
  readonly #sockets = new Set<Socket>();

  constructor(target: string, budget: () => number) {
    this.#target = target;
    this.#budget = budget;
    this.#server = createServer((socket) => {
      this.#pass(socket);
    });
  }

  /** Begins to listen; returns where. */
  async start(): Promise<string> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  #pass(near: Socket): void {
    const [host, port] = this.#target.split(":");
    const far = connect(Number(port), host);
    let left = this.#budget();
    const end = (): void => {
      near.destroy();
      far.destroy();
      this.#sockets.delete(near);
    };
    this.#sockets.add(near);
    for (const socket of [near, far]) {
      socket.on("error", end);
      socket.on("close", end);
    }
    near.on("data", (bytes) => far.write(bytes));
    far.on("data", (bytes) => {
      // Also in the middle of a frame.
      near.write(bytes.subarray(0, Math.min(left, bytes.length)), () => {
        if (left <= 0) {
          end();
        }
      });
      left -= bytes.length;
      if (left <= 0) {
        this.cuts += 1;
        left = -Infinity;
        far.pause();
      }
    });
  }

  async stop(): Promise<void> {
    this.#server.close();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    await once(this.#server, "close");
  }
}
