// How a client proves who it is, and with whom it speaks.
import { readFileSync } from "node:fs";
import { connect as connectSocket, isIP } from "node:net";
import type { SecureClientSessionOptions } from "node:http2";

import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import { ArgumentError } from "./errors.js";

const KEY_VARIABLE = "RUNLANE_API_KEY";
// What a header takes; a line feed at the end of a file is the usual mistake.
const HEADER = /^[!-~]+$/;
const UNIX = /^unix:(?:\/\/)?/;
/** What the server takes in one message, in bytes. */
export const REQUEST_BYTES = 8 * 1024 * 1024;
// MB that one connection may have on its way: as many as its calls bring. At the default, 10, one
// call that is large ends all others.
const CONNECTION_MEGABYTES = 1024;

/** How a connection is secured. */
export interface Tls {
  /** A file with the authorities of the server's certificate, PEM; default: this machine's. */
  readonly ca?: string;
  /** A file with the client's certificate, PEM, where the server asks for one. */
  readonly cert?: string;
  /** A file with its private key, PEM. */
  readonly key?: string;
}

/** Where a server is, and how it is reached. */
export interface Access {
  /** Such as `127.0.0.1:7480` (the default) or `unix:/run/runlane.sock`. */
  readonly target?: string;
  /** The secret of an API key, or a token; default: `RUNLANE_API_KEY`; empty: none. */
  readonly apiKey?: string;
  /** For a key that opens more than one; default: the one that it opens. */
  readonly namespace?: string;
  /**
   * How the connection is secured. True: against the authorities of this machine. A text: against
   * those in this file, PEM. A `Tls`: also with a certificate of the client's own. Default: not
   * at all, and then a key is sent to this machine alone; false: to any.
   */
  readonly tls?: boolean | string | Tls;
  /** Names the caller in the `actor` of events. */
  readonly clientName?: string;
}

/** A way to the server, and how it is ended. */
export interface Connection {
  readonly transport: Transport;
  readonly close: () => void;
}

/**
 * Returns what every call carries.
 *
 * @throws ArgumentError The key is none, or others could read it on the way.
 */
export function callHeaders(access: Access, target: string, given: boolean): Headers {
  const headers = new Headers();
  const key = access.apiKey ?? process.env[KEY_VARIABLE] ?? "";
  if (key !== "") {
    const where = access.apiKey === undefined ? KEY_VARIABLE : "apiKey";
    if (!HEADER.test(key)) {
      throw new ArgumentError(where, "has characters that no key has, such as a line feed");
    }
    if (access.tls === undefined && !given && !isHere(target)) {
      throw new ArgumentError(
        where,
        `${target} may be another machine, and the key could be read on the way: say how to ` +
          "secure the connection, tls: true or a file of authorities, or tls: false where " +
          "something else does",
      );
    }
    headers.set("authorization", `Bearer ${key}`);
  }
  if (access.namespace !== undefined && access.namespace !== "") {
    headers.set("runlane-namespace", access.namespace);
  }
  if (access.clientName !== undefined && access.clientName !== "") {
    headers.set("runlane-client", access.clientName);
  }
  return headers;
}

/** Makes the connection, which is opened at the first call. */
export function connection(access: Access, target: string): Connection {
  const tls = tlsOf(access.tls);
  const socket = UNIX.test(target) ? target.replace(UNIX, "") : undefined;
  const host = socket === undefined ? target.replace(/^dns:(\/\/\/)?/, "") : "localhost";
  const baseUrl = `${tls === undefined ? "http" : "https"}://${host}`;
  const options: SecureClientSessionOptions = { ...tls, maxSessionMemory: CONNECTION_MEGABYTES };
  if (socket !== undefined) {
    options.createConnection = () => connectSocket(socket);
  }
  // A dead peer is noticed within 40 s while a call is open.
  const pings = { pingIntervalMs: 30_000, pingTimeoutMs: 10_000 };
  const sessions = new Http2SessionManager(baseUrl, pings, options);
  const transport = createGrpcTransport({
    baseUrl,
    sessionManager: sessions,
    acceptCompression: [],
    // What the server would refuse half-way is not sent: it would hold up the calls beside it.
    writeMaxBytes: REQUEST_BYTES,
  });
  return {
    transport,
    close: () => {
      sessions.abort();
    },
  };
}

function tlsOf(given: Access["tls"]): SecureClientSessionOptions | undefined {
  if (given === undefined || given === false) {
    return undefined;
  }
  const tls: Tls = given === true ? {} : typeof given === "string" ? { ca: given } : given;
  if ((tls.cert === undefined) !== (tls.key === undefined)) {
    throw new ArgumentError("tls", "cert and key go together");
  }
  const read = (file: string | undefined): { readonly text?: Buffer } =>
    file === undefined ? {} : { text: readFileSync(file) };
  const found: SecureClientSessionOptions = {};
  const [ca, cert, key] = [read(tls.ca).text, read(tls.cert).text, read(tls.key).text];
  if (ca !== undefined) {
    found.ca = ca;
  }
  if (cert !== undefined && key !== undefined) {
    found.cert = cert;
    found.key = key;
  }
  return found;
}

function isHere(target: string): boolean {
  if (UNIX.test(target)) {
    return true;
  }
  const host = target
    .slice(0, target.lastIndexOf(":"))
    .replace(/^.*\//, "")
    .replace(/^\[|\]$/g, "");
  return host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}
