// What is repeated, when, and for how long: read from the one table of all clients.
import type { DescMethod } from "@bufbuild/protobuf";

import { RunlaneError, ServiceError, TransportError } from "./errors.js";
import { CALLS } from "./gen/calls.js";

/** How a method is called; see proto/calls.json. */
export interface Policy {
  readonly repeat: string;
  readonly deadline: string;
  readonly attempt_seconds?: number;
  readonly silence_seconds?: number;
}

interface Rules {
  readonly transport_codes: readonly string[];
  readonly service_codes: readonly string[];
  readonly reasons_with_delay: readonly string[];
  readonly reasons_if_connected?: readonly string[];
}

const METHODS: Readonly<Record<string, Policy>> = CALLS.methods;

/** Returns how a method is called. */
export function policyOf(method: DescMethod): Policy {
  const policy = METHODS[`${method.parent.typeName}/${method.name}`];
  if (policy === undefined) {
    throw new RunlaneError(`${method.name} has no deadline in the table of calls`);
  }
  return policy;
}

/** Returns the seconds that a whole call may take, of those that it is allowed and its wait. */
export function deadlineSeconds(policy: Policy, allowed: number, wait: number): number {
  // The service answers a wait some time before the deadline: hence the margin.
  return policy.deadline === "wait" ? allowed + CALLS.wait_factor * wait : allowed;
}

/** Tells whether a unary call that failed so may be made again. */
export function isRepeatable(error: RunlaneError, policy: Policy): boolean {
  if (policy.repeat === "never") {
    return false;
  }
  if (error instanceof TransportError && error.code === "DEADLINE_EXCEEDED") {
    return policy.attempt_seconds !== undefined;
  }
  return passes(error, CALLS.again, false);
}

/** Tells whether a stream that ended so may be opened again; `connected`: it was open before. */
export function isReopenable(error: RunlaneError, connected: boolean): boolean {
  return passes(error, CALLS.reopen, connected);
}

function passes(error: RunlaneError, rules: Rules, connected: boolean): boolean {
  if (error instanceof TransportError) {
    return (error.retryAfterSeconds ?? 0) >= 0 && rules.transport_codes.includes(error.code);
  }
  if (!(error instanceof ServiceError)) {
    return false;
  }
  return (
    rules.service_codes.includes(error.code) ||
    (error.retryAfterSeconds !== undefined && rules.reasons_with_delay.includes(error.reason)) ||
    (connected && (rules.reasons_if_connected ?? []).includes(error.reason))
  );
}

/** Returns the seconds to wait before another attempt; `attempt`: failures in a row, from 1. */
export function delaySeconds(attempt: number, error?: RunlaneError): number {
  const { first_seconds, longest_seconds, multiplier, jitter_from } = CALLS.backoff;
  const grown = Math.min(longest_seconds, first_seconds * multiplier ** Math.min(attempt - 1, 16));
  const jittered = grown * (jitter_from + (1 - jitter_from) * Math.random());
  const told = error instanceof ServiceError || error instanceof TransportError;
  return jittered + Math.max(0, (told ? error.retryAfterSeconds : undefined) ?? 0);
}

export const CALL_SECONDS: number = CALLS.call_seconds;
export const STREAM_SECONDS: number = CALLS.stream_seconds;
export const RECONNECT_SECONDS: number = CALLS.reconnect_seconds;
