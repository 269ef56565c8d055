// Pieces of an answer on their way to those who watch; best effort.
import type { MessageShape } from "@bufbuild/protobuf";

import { Linked, Signal, sleep } from "../async.js";
import type { Caller } from "../caller.js";
import type { Delta, Fence } from "../gen/models.js";
import { PublishDeltasRequestSchema, ExecutorService } from "../gen/executor_service_pb.js";
import { fromPlain, type Init } from "../plain.js";
import type { ModelDelta } from "./model.js";

// What comes within this many seconds goes out as one piece.
const COALESCE = 0.05;
// Seconds that the end of a stream may hold up the commit that replaces it.
const FLUSH = 0.25;
// Characters a piece may have: at four bytes each it stays under 256 KiB.
const PIECE = 64 * 1024;

interface BlockState {
  readonly kind: "text" | "reasoning";
  pending: string;
  revision: number;
}

/**
 * Publishes the deltas of one model step. Pieces are merged while an earlier one is on its way,
 * so a slow connection costs watchers detail and never the model time. A failure ends the
 * publishing of this step, and nothing else.
 */
export class DeltaPublisher {
  readonly #caller: Caller;
  readonly #fence: Fence;
  readonly #modelStreamId: string;
  readonly #step: number;
  readonly #blocks = new Map<number, BlockState>();
  readonly #wake = new Signal();
  readonly #stop = new Linked();
  #finishing = false;
  #sending: Promise<unknown> | undefined;

  constructor(caller: Caller, fence: Fence, modelStreamId: string, step: number) {
    this.#caller = caller;
    this.#fence = fence;
    this.#modelStreamId = modelStreamId;
    this.#step = step;
  }

  /** Takes a piece; returns at once. */
  push(delta: ModelDelta): void {
    if (delta.text === "") {
      return;
    }
    const at = delta.blockIndex ?? 0;
    let block = this.#blocks.get(at);
    if (block === undefined) {
      block = { kind: delta.kind ?? "text", pending: "", revision: 0 };
      this.#blocks.set(at, block);
    }
    block.pending += delta.text;
    this.#wake.set();
    // It is best effort: what it ends with is of no use to anybody.
    this.#sending ??= this.#caller
      .send(ExecutorService.method.publishDeltas, this.#requests(), this.#stop.signal)
      .catch(() => undefined);
  }

  /** Sends what is left, for a moment at most; then nothing more is sent. */
  async finish(): Promise<void> {
    if (this.#sending !== undefined) {
      this.#finishing = true;
      this.#wake.set();
      await Promise.race([this.#sending, sleep(FLUSH)]);
    }
    this.abandon();
  }

  /** Drops what is left. */
  abandon(): void {
    this.#finishing = true;
    this.#wake.set();
    this.#stop.abort(new Error("no more is published"));
  }

  async *#requests(): AsyncGenerator<MessageShape<typeof PublishDeltasRequestSchema>> {
    let fence: Fence | undefined = this.#fence;
    for (;;) {
      await this.#wake.take();
      for (let deltas = this.#round(); deltas.length > 0; deltas = this.#round()) {
        yield fromPlain(PublishDeltasRequestSchema, { fence, deltas });
        fence = undefined;
      }
      if (this.#finishing) {
        return;
      }
      await sleep(COALESCE, this.#stop.signal);
    }
  }

  #round(): Init<Delta>[] {
    const pieces: Init<Delta>[] = [];
    for (const [blockIndex, block] of this.#blocks) {
      const appendText = this.#cut(block);
      if (appendText !== "" && pieces.length < 256) {
        pieces.push(this.#piece(blockIndex, block, appendText));
      }
    }
    return pieces;
  }

  /** Takes the next piece; half of a surrogate pair waits for the other half. */
  #cut(block: BlockState): string {
    let end = Math.min(PIECE, block.pending.length);
    if (/[\uD800-\uDBFF]$/.test(block.pending.slice(0, end))) {
      end -= 1;
    }
    const text = block.pending.slice(0, end);
    block.pending = block.pending.slice(end);
    return text.toWellFormed().replaceAll("\0", "");
  }

  #piece(blockIndex: number, block: BlockState, appendText: string): Init<Delta> {
    block.revision += 1;
    return {
      modelStreamId: this.#modelStreamId,
      runId: this.#fence.runId,
      activationId: this.#fence.activationId,
      step: this.#step,
      blockIndex,
      kind: block.kind,
      baseRevision: block.revision - 1,
      revision: block.revision,
      appendText,
    };
  }
}
