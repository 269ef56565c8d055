// Errors that the client throws. What the service says is a `ServiceError` with its reason; all
// else that went wrong on the way is a `TransportError`.
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { ConnectError } from "@connectrpc/connect";

import type { ErrorReason } from "./gen/models.js";

/** A reason that the service gives, as in docs/errors.md. */
export type Reason = Uppercase<Exclude<ErrorReason, "unknown">>;

/** Names of the gRPC status codes. */
export type StatusCode =
  | "CANCELLED"
  | "UNKNOWN"
  | "INVALID_ARGUMENT"
  | "DEADLINE_EXCEEDED"
  | "NOT_FOUND"
  | "ALREADY_EXISTS"
  | "PERMISSION_DENIED"
  | "RESOURCE_EXHAUSTED"
  | "FAILED_PRECONDITION"
  | "ABORTED"
  | "OUT_OF_RANGE"
  | "UNIMPLEMENTED"
  | "INTERNAL"
  | "UNAVAILABLE"
  | "DATA_LOSS"
  | "UNAUTHENTICATED";

const CODES: readonly StatusCode[] = [
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
];
const DOMAIN = "runlane.dev";
// What a transport says where it is no answer of anybody: the call may have been carried out.
const BROKEN: ReadonlySet<StatusCode> = new Set([
  "CANCELLED",
  "UNKNOWN",
  "ABORTED",
  "INTERNAL",
  "DATA_LOSS",
]);

/** Anything that this client throws on its own account. */
export class RunlaneError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A field of the request that breaks its rule. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** What a failed call carries beside its reason. */
export interface ErrorDetails {
  readonly code: StatusCode;
  /** Seconds after which to try again, where it was said; negative: not at all. */
  readonly retryAfterSeconds?: number | undefined;
  readonly cause?: unknown;
}

/** The service refused the call, or failed; `reason` says why. */
export class ServiceError extends RunlaneError {
  /** Why; a reason that is newer than this client stands here, too. */
  readonly reason: Reason | (string & {});
  /** The gRPC status code. */
  readonly code: StatusCode;
  /** Entries beside the reason, as the contract names them. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Seconds after which to try again, where the service said so. */
  readonly retryAfterSeconds: number | undefined;
  /** The fields that break a rule, where the request was invalid. */
  readonly violations: readonly FieldViolation[];

  constructor(
    reason: string,
    message: string,
    details: ErrorDetails & {
      readonly metadata?: Readonly<Record<string, string>>;
      readonly violations?: readonly FieldViolation[];
    },
  ) {
    super(message === "" ? reason : `${reason}: ${message}`, { cause: details.cause });
    this.reason = reason;
    this.code = details.code;
    this.metadata = details.metadata ?? {};
    this.retryAfterSeconds = details.retryAfterSeconds;
    this.violations = details.violations ?? [];
  }
}

/** The call failed without a word of the service: no connection, a deadline, a proxy. */
export class TransportError extends RunlaneError {
  /** UNAVAILABLE where there is no connection, DEADLINE_EXCEEDED where the deadline passed. */
  readonly code: StatusCode;
  /** Seconds after which to try again, where the peer said so; negative: not at all. */
  readonly retryAfterSeconds: number | undefined;

  constructor(message: string, details: ErrorDetails) {
    super(message === "" ? details.code : `${details.code}: ${message}`, { cause: details.cause });
    this.code = details.code;
    this.retryAfterSeconds = details.retryAfterSeconds;
  }
}

/** An argument of which no request can be made; nothing was sent. */
export class ArgumentError extends RunlaneError {
  /** The field, as a path of names. */
  readonly field: string;

  constructor(field: string, problem: string) {
    super(field === "" ? problem : `${field}: ${problem}`);
    this.field = field;
  }
}

/** The service sent an integer that a number cannot hold exactly. */
export class UnsafeIntegerError extends RunlaneError {
  /** The field, as a path of names. */
  readonly field: string;
  /** The integer in decimal. */
  readonly value: string;

  constructor(field: string, value: bigint) {
    super(`${field}: ${value} is beyond 2^53 - 1`);
    this.field = field;
    this.value = value.toString();
  }
}

/** An event stream without a filter left out an event. */
export class StreamGapError extends RunlaneError {
  readonly expected: number;
  readonly received: number;

  constructor(expected: number, received: number) {
    super(`expected sequence ${expected}, received ${received}`);
    this.expected = expected;
    this.received = received;
  }
}

/** A wait of the client's own ran out; what was waited for goes on. */
export class WaitTimeoutError extends RunlaneError {}

/** The client was closed. */
export class ClientClosedError extends RunlaneError {}

/** The session manager was closed. */
export class ManagerClosedError extends RunlaneError {}

/** Tells whether an error is one of the service with one of these reasons. */
export function isReason<R extends Reason>(
  error: unknown,
  ...reasons: readonly R[]
): error is ServiceError & { readonly reason: R } {
  return error instanceof ServiceError && (reasons as readonly string[]).includes(error.reason);
}

/** Returns the error that a failed call stands for. */
export function fromConnectError(error: unknown): ServiceError | TransportError {
  const failure = ConnectError.from(error);
  const told = readDetails(failure);
  const said = CODES[failure.code - 1] ?? "UNKNOWN";
  const pushback = failure.metadata.get("grpc-retry-pushback-ms");
  const details = {
    retryAfterSeconds: told.retryAfterSeconds ?? (pushback === null ? undefined : pushed(pushback)),
    cause: error,
  };
  if (told.domain === DOMAIN && told.reason !== "") {
    return new ServiceError(told.reason, failure.rawMessage, { ...details, ...told, code: said });
  }
  const answered = failure.metadata.has("grpc-status");
  const code = !answered && BROKEN.has(said) ? "UNAVAILABLE" : said;
  return new TransportError(failure.rawMessage, { ...details, code });
}

interface Told {
  reason: string;
  domain: string;
  metadata: Record<string, string>;
  violations: FieldViolation[];
  retryAfterSeconds?: number;
}

function pushed(value: string): number | undefined {
  const milliseconds = Number(value);
  return Number.isFinite(milliseconds) ? milliseconds / 1000 : undefined;
}

function readDetails(failure: ConnectError): Told {
  const told: Told = { reason: "", domain: "", metadata: {}, violations: [] };
  for (const detail of failure.details) {
    if (!("type" in detail)) {
      continue;
    }
    try {
      readDetail(detail.type, detail.value, told);
    } catch {
      // A detail that cannot be read says nothing; the status stands.
    }
  }
  return told;
}

// The three messages of google/rpc/error_details.proto that the contract has.
function readDetail(type: string, bytes: Uint8Array, told: Told): void {
  switch (type) {
    case "google.rpc.ErrorInfo":
      readFields(bytes, (number, reader) => {
        if (number === 1) {
          told.reason = reader.string();
        } else if (number === 2) {
          told.domain = reader.string();
        } else if (number === 3) {
          const [key, value] = readPair(reader.bytes());
          told.metadata[key] = value;
        } else {
          return false;
        }
        return true;
      });
      break;
    case "google.rpc.BadRequest":
      readFields(bytes, (number, reader) => {
        if (number !== 1) {
          return false;
        }
        const [field, description] = readPair(reader.bytes());
        told.violations.push({ field, description });
        return true;
      });
      break;
    case "google.rpc.RetryInfo":
      readFields(bytes, (number, reader) => {
        if (number !== 1) {
          return false;
        }
        told.retryAfterSeconds = readDuration(reader.bytes());
        return true;
      });
      break;
  }
}

type Take = (number: number, reader: BinaryReader) => boolean;

function readFields(bytes: Uint8Array, take: Take): void {
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [number, wire] = reader.tag();
    if (!take(number, reader)) {
      reader.skip(wire);
    }
  }
}

function readPair(bytes: Uint8Array): [string, string] {
  const pair: [string, string] = ["", ""];
  readFields(bytes, (number, reader) => {
    if (number !== 1 && number !== 2) {
      return false;
    }
    pair[number - 1] = reader.string();
    return true;
  });
  return pair;
}

function readDuration(bytes: Uint8Array): number {
  let seconds = 0;
  readFields(bytes, (number, reader) => {
    if (number === 1) {
      seconds += Number(reader.int64());
    } else if (number === 2) {
      seconds += reader.int32() / 1e9;
    } else {
      return false;
    }
    return true;
  });
  return seconds;
}
