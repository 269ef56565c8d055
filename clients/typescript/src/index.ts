/** The client of Runlane: sessions, history and executors. See README.md. */
export type { Access, Tls } from "./access.js";
export type { CallerOptions as ClientOptions, CallOptions } from "./caller.js";
export { Client, type Receipt, type SubmitOptions } from "./client.js";
export {
  textOf,
  toolResultOf,
  toolUsesOf,
  type Answer,
  type BlockInit,
  type Input,
  type Verdict,
} from "./content.js";
export {
  ArgumentError,
  ClientClosedError,
  isReason,
  ManagerClosedError,
  RunlaneError,
  ServiceError,
  StreamGapError,
  TransportError,
  UnsafeIntegerError,
  WaitTimeoutError,
  type FieldViolation,
  type Reason,
  type StatusCode,
} from "./errors.js";
export { EventStream, type StreamItem, type StreamOptions } from "./events.js";
export { Executor, type ExecutorOptions } from "./executor/executor.js";
export type { Log } from "./executor/lease.js";
export {
  ModelError,
  type Agent,
  type Model,
  type ModelDelta,
  type ModelRequest,
  type ModelResponse,
  type ToolCallRequest,
} from "./executor/model.js";
export {
  tool,
  ToolError,
  ToolOutput,
  type Asked,
  type ChildRun,
  type Schema,
  type Tool,
  type ToolContext,
  type ToolPolicy,
  type ToolSpec,
} from "./executor/tools.js";
export { type Fork, type ForkOptions, type HistoryAtRun, SessionHistory } from "./history.js";
export { SessionManager, type ChangeOptions, type ManagerOptions } from "./manager.js";
export { List, type Page, type PageOptions } from "./pages.js";
export type { Init, Plain } from "./plain.js";
export type { RunResult, WaitOptions } from "./runs.js";
export {
  SessionView,
  type OpenTool,
  type PartialAnswer,
  type PartialBlock,
  type ViewOptions,
  type ViewState,
} from "./view.js";
export type * from "./gen/models.js";
export { AdminService } from "./gen/admin_service_pb.js";
export { ExecutorService } from "./gen/executor_service_pb.js";
export { HistoryService } from "./gen/history_service_pb.js";
export { ServerService } from "./gen/server_service_pb.js";
export { SessionService } from "./gen/session_service_pb.js";
