// Waits that can be called off.
import { setMaxListeners } from "node:events";

/** Waits; throws the signal's reason where it is aborted first. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) {
      reject(signal.reason as Error);
      return;
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, seconds * 1000);
    function onAbort(): void {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    }
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** A signal that is aborted with the first of others; `free` lets go of them. */
export class Linked {
  readonly #controller = new AbortController();
  readonly #sources: readonly AbortSignal[];
  readonly #onAbort = (event: Event): void => {
    this.#controller.abort((event.target as AbortSignal).reason);
  };

  constructor(...signals: readonly (AbortSignal | undefined)[]) {
    // As many wait for it as there are calls.
    setMaxListeners(0, this.#controller.signal);
    this.#sources = signals.filter((signal) => signal !== undefined);
    for (const source of this.#sources) {
      if (source.aborted) {
        this.#controller.abort(source.reason);
      }
      source.addEventListener("abort", this.#onAbort, { once: true });
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  abort(reason: unknown): void {
    this.#controller.abort(reason);
  }

  free(): void {
    for (const source of this.#sources) {
      source.removeEventListener("abort", this.#onAbort);
    }
  }
}

/** Waits for a promise; throws the signal's reason where it is aborted first. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let onAbort: (() => void) | undefined;
  const told = new Promise<never>((_resolve, reject) => {
    onAbort = () => {
      reject(signal.reason as Error);
    };
    if (signal.aborted) {
      onAbort();
    } else {
      signal.addEventListener("abort", onAbort, { once: true });
    }
  });
  // Where the signal wins, nobody looks at what the work ends with.
  work.catch(() => undefined);
  try {
    return await Promise.race([work, told]);
  } finally {
    if (onAbort !== undefined) {
      signal.removeEventListener("abort", onAbort);
    }
  }
}

/** An event that one or more wait for: `set` lets them go on. */
export class Signal {
  #waiters: (() => void)[] = [];
  #set = false;

  set(): void {
    this.#set = true;
    for (const waiter of this.#waiters.splice(0)) {
      waiter();
    }
  }

  /** Waits until it is set, and takes that back. */
  async take(): Promise<void> {
    if (!this.#set) {
      await new Promise<void>((resolve) => {
        this.#waiters.push(resolve);
      });
    }
    this.#set = false;
  }
}
