// Operations of a Commit.
import type { Operation, ToolResult } from "../gen/models.js";
import type { Init } from "../plain.js";
import { sizeOf } from "./content.js";
import type { Tool } from "./tools.js";

/** Calls of one claim, and of one prompt. */
export const IDS = 64;
/** Asks for a model step. */
export const RESERVE: Init<Operation> = { reserveModelStep: {} };
const COMMIT_BYTES = 2 * 1024 * 1024;

/** Whether a result is not OK. */
export function isFailed(result: Init<ToolResult>): boolean {
  return result.outcome !== "ok";
}

/** Commits results. */
export function resultsOf(results: readonly Init<ToolResult>[]): Init<Operation> {
  return { commitToolResults: { results } };
}

/** Claims calls that are to be run. */
export function claimsOf(running: readonly [string, { readonly tool: Tool }][]): Init<Operation>[] {
  const operations: Init<Operation>[] = [];
  for (const idempotent of [true, false]) {
    const ids = running
      .filter(([, plan]) => (plan.tool.idempotent ?? false) === idempotent)
      .map(([key]) => key);
    for (let start = 0; start < ids.length; start += IDS) {
      const toolCallIds = ids.slice(start, start + IDS);
      operations.push({ claimToolCalls: { toolCallIds, idempotent } });
    }
  }
  return operations;
}

/** Cuts results into what one commit takes. */
export function portions(results: readonly Init<ToolResult>[]): Init<ToolResult>[][] {
  const cut: Init<ToolResult>[][] = [];
  let size = 0;
  for (const result of results) {
    const more = sizeOf(result);
    const last = cut.at(-1);
    if (last === undefined || last.length === IDS || size + more > COMMIT_BYTES) {
      cut.push([result]);
      size = more;
    } else {
      last.push(result);
      size += more;
    }
  }
  return cut;
}
