// Generated code. `make gen` makes it anew from proto/.

/** What happens when a lease runs out and nothing stands in the way of going on. */
export type Recovery =
  | "auto"
  | "manual"
  | "unknown";

/** What happens when a tool fails or a person says no. */
export type ToolErrorPolicy =
  | "return_to_model"
  | "stop"
  | "unknown";

/**
 * Something a client may ask of a session. `allowed_commands` lists those that
 * the next call would neither refuse nor answer with "unchanged".
 */
export type Command =
  | "start"
  | "auto"
  | "queue"
  | "steer"
  | "follow_up"
  | "replace"
  | "interrupt"
  | "withdraw"
  | "close"
  | "reopen"
  | "delete"
  | "pause"
  | "unpause"
  | "restore"
  | "answer"
  | "unknown";

/** What became of a request to pause or unpause. */
export type PauseReceipt =
  | "requested"
  | "paused"
  | "resumed"
  | "unchanged"
  | "unknown";

/**
 * Reasons of google.rpc.ErrorInfo, domain `runlane.dev`, in every error that
 * the service itself gives; there without the prefix ERROR_REASON_. An error
 * without ErrorInfo came from the transport. Each comment names the code and
 * the metadata keys, which are part of the contract.
 */
export type ErrorReason =
  | "field_invalid"
  | "input_empty"
  | "options_not_allowed"
  | "page_token_invalid"
  | "page_token_mismatch"
  | "operation_invalid"
  | "answer_invalid"
  | "session_not_found"
  | "run_not_found"
  | "submission_not_found"
  | "interaction_not_found"
  | "tool_call_not_found"
  | "agent_not_found"
  | "key_not_found"
  | "session_exists"
  | "request_id_reused"
  | "session_busy"
  | "session_idle"
  | "session_closed"
  | "session_live"
  | "child_session"
  | "run_not_current"
  | "run_not_terminal"
  | "run_not_top_level"
  | "run_terminal"
  | "run_cancelling"
  | "interaction_closed"
  | "interaction_conflict"
  | "submission_settled"
  | "call_unresolved"
  | "call_has_child"
  | "stale_activation"
  | "revision_mismatch"
  | "etag_mismatch"
  | "activation_mismatch"
  | "queue_full"
  | "quota_exceeded"
  | "stream_limit"
  | "message_too_large"
  | "sequence_ahead"
  | "credential_missing"
  | "credential_invalid"
  | "scope_missing"
  | "draining"
  | "stream_ended"
  | "store_unavailable"
  | "store_corrupt"
  | "internal_error"
  | "unknown";

/** What a credential may do; no scope holds another one. */
export type ApiKeyScope =
  | "read"
  | "submit"
  | "answer"
  | "execute"
  | "admin"
  | "unknown";

/** Whether it waits for an answer. */
export type InteractionState =
  | "open"
  | "answered"
  | "closed"
  | "unknown";

/** Why it ended without an answer. */
export type InteractionCloseReason =
  | "run_ended"
  | "expired"
  | "unknown";

/** The verdicts that there are. */
export type DecisionVerdict =
  | "approve"
  | "reject"
  | "unknown";

/** Whose turn the message is. */
export type MessageRole =
  | "user"
  | "assistant"
  | "tool"
  | "unknown";

/** How the message came to be. */
export type MessageAuthor =
  | "input"
  | "steer"
  | "model"
  | "tool"
  | "closer"
  | "unknown";

/** What the bytes are for. */
export type MediaKind =
  | "image"
  | "audio"
  | "video"
  | "file"
  | "unknown";

/** The outcomes that there are. */
export type ToolResultOutcome =
  | "ok"
  | "error"
  | "rejected"
  | "cancelled"
  | "unknown"
  | "unknown";

/** Whether the run lives. */
export type RunPhase =
  | "active"
  | "waiting"
  | "paused"
  | "terminal"
  | "unknown";

/** Where in its loop the run stands. */
export type RunPosition =
  | "before_model"
  | "tool_batch"
  | "outcome_ready"
  | "unknown";

/** Why a run ended. */
export type RunStopReason =
  | "completed"
  | "failed"
  | "cancelled"
  | "deadline_exceeded"
  | "interaction_expired"
  | "budget_exhausted"
  | "outcome_unknown"
  | "unknown";

/** How many of them have to end. */
export type ChildrenWaitMode =
  | "any"
  | "all"
  | "unknown";

/** Kinds of failure that a program can act on. */
export type RunFailureReason =
  | "no_executor"
  | "lease_expired"
  | "recovery_exhausted"
  | "tool_failed"
  | "model_unavailable"
  | "model_refused"
  | "executor_error"
  | "unknown";

/** Why the turn is taken. */
export type ActivationKind =
  | "start"
  | "continue"
  | "recover"
  | "unknown";

/** Whether somebody has it. */
export type ActivationState =
  | "queued"
  | "leased"
  | "abandoned"
  | "unknown";

/** What the caller asked to be done with the input. */
export type SubmissionMode =
  | "start"
  | "auto"
  | "queue"
  | "steer"
  | "follow_up"
  | "replace"
  | "unknown";

/** The way that was taken. */
export type SubmissionRoute =
  | "run"
  | "steer"
  | "follow_up"
  | "unknown";

/** How far the input has come. */
export type SubmissionState =
  | "pending"
  | "delivered"
  | "failed"
  | "withdrawn"
  | "unknown";

/** What happens to a steer whose run ends, or is cancelled, before a boundary takes it. */
export type SubmissionOnMiss =
  | "fail"
  | "follow_up"
  | "unknown";

/** Why a submission failed. */
export type SubmissionFailureReason =
  | "target_terminal"
  | "target_cancelling"
  | "start_failed"
  | "session_closed"
  | "unknown";

/** Whether a session takes new input. */
export type SessionState =
  | "open"
  | "closed"
  | "unknown";

/** Kinds of event. Each number is the field number of the kind's body. */
export type EventType =
  | "session.created"
  | "session.updated"
  | "session.closed"
  | "session.reopened"
  | "session.forked"
  | "session.compacted"
  | "session.imported"
  | "session.deleted"
  | "submission.pending"
  | "submission.moved"
  | "submission.delivered"
  | "submission.failed"
  | "submission.withdrawn"
  | "run.created"
  | "run.waiting"
  | "run.cancellation_requested"
  | "run.pause_requested"
  | "run.paused"
  | "run.unpaused"
  | "run.recovering"
  | "run.stalled"
  | "run.ending"
  | "run.terminal"
  | "activation.queued"
  | "activation.leased"
  | "activation.ended"
  | "activation.abandoned"
  | "message.appended"
  | "model_step.reserved"
  | "model_step.committed"
  | "tool_call.prepared"
  | "tool_call.claimed"
  | "tool_call.committed"
  | "tool_call.outcome_unknown"
  | "tool_call.cancelled"
  | "interaction.opened"
  | "interaction.answered"
  | "interaction.closed"
  | "child_run.started"
  | "child_run.finished"
  | "unknown";

/** The act. */
export type ActivationEndedReason =
  | "finished"
  | "released"
  | "suspended"
  | "paused"
  | "budget_exhausted"
  | "tool_failed"
  | "unknown";

/** What ended it. */
export type ActivationAbandonedReason =
  | "cancelled"
  | "grace_expired"
  | "lease_expired"
  | "unconfirmed"
  | "deadline_exceeded"
  | "paused"
  | "restored"
  | "no_executor"
  | "settled"
  | "unknown";

/** What the block is. */
export type DeltaKind =
  | "text"
  | "reasoning"
  | "unknown";

/** What to do where the id is taken by a live session. */
export type CreateSessionRequestIfExists =
  | "error"
  | "return"
  | "unknown";

/** What became of it. */
export type RestoreRunResponseOutcome =
  | "attached"
  | "still_leased"
  | "recovery_queued"
  | "settled"
  | "unknown";

/** How far a call gets. */
export type ToolCallState =
  | "prepared"
  | "claimed"
  | "committed"
  | "outcome_unknown"
  | "cancelled"
  | "unknown";

/** What to do. */
export type ReserveModelStepResultState =
  | "granted"
  | "paused"
  | "run_ended"
  | "unknown";

/** The orders that there are. Equal times are ordered by session_id. */
export type ListSessionsRequestOrder =
  | "created_desc"
  | "created_asc"
  | "updated_desc"
  | "unknown";

/** How durable an answered write is. */
export type GetServerInfoResponseDurability =
  | "process"
  | "disk"
  | "unknown";

/**
 * A credential of a client or an executor. The secret that proves it is told once, when the
 * key is made; the server keeps a hash of it alone.
 */
export interface ApiKey {
  /** Its id. */
  readonly keyId: string;
  /**
   * Whom it stands for, in the `actor` of events as `client:` and this name. Two keys may have
   * one name, so that one can take the place of the other.
   */
  readonly name: string;
  /** The namespace that it opens; `*`: every one. */
  readonly namespace: string;
  /** What it may do. */
  readonly scopes: readonly ApiKeyScope[];
  /** The last 4 characters of its secret, to tell keys apart. */
  readonly lastCharacters: string;
  /** When it was made. */
  readonly createTime?: Date;
  /** When it ends; unset: never. */
  readonly expireTime?: Date;
  /** When it was revoked; unset: it was not. */
  readonly revokeTime?: Date;
}

/** A typed question that a WAITING run waits for. */
export interface Interaction {
  /** Id in the namespace: `int_` and a UUIDv7. */
  readonly interactionId: string;
  /** The run that waits. */
  readonly runId: string;
  /** Its session. */
  readonly sessionId: string;
  /** The version of the question, from 1; an answer names it. */
  readonly version: number;
  /** Whether it waits for an answer. */
  readonly state?: InteractionState;
  /** The question. */
  readonly prompt?: Prompt;
  /** The answer; unset unless ANSWERED. */
  readonly answer?: InteractionAnswer;
  /** Why it ended without an answer. */
  readonly closeReason?: InteractionCloseReason;
  /** When it expires, which ends its run; unset: never. */
  readonly expireTime?: Date;
  /**
   * Of a proxy, the question of a child run that it shows on the parent; unset otherwise. An
   * answer to it is one to that question.
   */
  readonly proxyFor?: ProxySource;
  /** When it was opened. */
  readonly createTime?: Date;
  /** When it was answered or closed. */
  readonly settleTime?: Date;
}

/** The question that a proxy shows: that of the run that asks, however deep it is. */
export interface ProxySource {
  /** The run that asks. */
  readonly runId: string;
  /** Its interaction. */
  readonly interactionId: string;
  /** Its session. */
  readonly sessionId: string;
}

/** A question of one of four kinds. */
export interface Prompt {
  /** May these tool calls run? */
  readonly permission?: PermissionPrompt;
  /** A question to be answered with text. */
  readonly question?: QuestionPrompt;
  /** A question to be answered with JSON that fits a schema. */
  readonly form?: FormPrompt;
  /** A wait for some other system, which completes it with the token of suspend's answer. */
  readonly external?: ExternalPrompt;
}

/** May these tool calls run? */
export interface PermissionPrompt {
  /** Open calls of the run: 1 to 64. Their names and arguments are filled in. */
  readonly calls: readonly PermissionCall[];
  /** For people; at most 4 KiB. */
  readonly reason: string;
}

/** A tool call that asks for permission. */
export interface PermissionCall {
  /** The call. */
  readonly toolCallId: string;
  /** The tool; filled in by the server. */
  readonly name: string;
  /** The arguments as JSON; filled in by the server. An answer is bound to them. */
  readonly argumentsJson: string;
}

/** A question to be answered with text. */
export interface QuestionPrompt {
  /** The question; 1 byte to 16 KiB. */
  readonly text: string;
  /** Answers to choose from, for display only: at most 64, 1 KiB each. */
  readonly options: readonly string[];
  /** The tool call that the answer is the result of; empty: none. */
  readonly toolCallId: string;
}

/** A question to be answered with JSON. */
export interface FormPrompt {
  /** The question; at most 16 KiB. */
  readonly text: string;
  /** A JSON Schema, draft 2020-12; at most 64 KiB. */
  readonly jsonSchema: string;
  /** The tool call that the answer is the result of; empty: none. */
  readonly toolCallId: string;
}

/** A wait for some other system. */
export interface ExternalPrompt {
  /** For people; at most 4 KiB. */
  readonly reason: string;
  /** The tool call that the completion is the result of; empty: none. */
  readonly toolCallId: string;
}

/** The answer to an interaction, of the kind of its prompt. */
export interface InteractionAnswer {
  /** To a permission. */
  readonly permission?: PermissionAnswer;
  /** To a question. */
  readonly question?: QuestionAnswer;
  /** To a form. */
  readonly form?: FormAnswer;
  /** To an external wait; only through CompleteExternal. */
  readonly external?: ExternalAnswer;
}

/** A decision for each call. */
export interface PermissionAnswer {
  /** One for each call of the prompt, in any order. */
  readonly decisions: readonly Decision[];
}

/** Whether a tool call may run. */
export interface Decision {
  /** The call. */
  readonly toolCallId: string;
  /** Whether it may run. */
  readonly verdict?: DecisionVerdict;
  /** For the model; at most 4 KiB. */
  readonly reason: string;
}

/** Text. */
export interface QuestionAnswer {
  /** The text; 1 byte to 64 KiB. */
  readonly text: string;
}

/** JSON that fits the form's schema. */
export interface FormAnswer {
  /** The JSON; at most 256 KiB. */
  readonly json: string;
}

/** What the other system said. */
export interface ExternalAnswer {
  /** Its result as JSON; at most 256 KiB. */
  readonly resultJson?: string;
  /** What went wrong; at most 4 KiB. */
  readonly error?: string;
}

/**
 * A committed message of a session. It never changes. A fork shows the
 * messages it took over exactly as they are in their source, ids included.
 */
export interface Message {
  /** Place in the session's history, from 1, without gaps. */
  readonly number: number;
  /** The session it was appended to. */
  readonly sessionId: string;
  /** The run that appended it. */
  readonly runId: string;
  /** Whose turn it is. */
  readonly role?: MessageRole;
  /** How it came to be. */
  readonly author?: MessageAuthor;
  /**
   * The model step it belongs to: of MODEL the step that produced it, of STEER the step
   * before it. Unset for INPUT.
   */
  readonly step: number;
  /** The content, in order. */
  readonly content: readonly Block[];
  /** The submission it came from; unset for MODEL. */
  readonly submissionId: string;
  /** Ties a MODEL message to the deltas that preceded it. */
  readonly modelStreamId: string;
  /** The model that answered, as its executor named it; only of MODEL. */
  readonly model: string;
  /** When it was committed. */
  readonly createTime?: Date;
  /** Entries of the application. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** One piece of content. */
export interface Block {
  /** Text. */
  readonly text?: string;
  /** An image, a sound, a video or a file. */
  readonly media?: Media;
  /** A tool call that the model asks for; in a model step alone. */
  readonly toolUse?: ToolUse;
  /** What became of a tool call; in a message of role TOOL alone, one a message. */
  readonly toolResult?: ToolResult;
  /** Reasoning of a model that the application keeps. */
  readonly reasoning?: Reasoning;
  /** Anything else, typed by its content type. */
  readonly data?: Data;
  /** Opaque JSON of the model provider, handed back to it unchanged; at most 64 KiB. */
  readonly providerJson: string;
  /** Entries of the application: at most 32, 4 KiB in all. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** A reference to bytes that live elsewhere, or a few bytes inline. */
export interface Media {
  /** What the bytes are for; required. */
  readonly kind?: MediaKind;
  /** The IANA media type, such as image/png; at most 255 bytes. */
  readonly mediaType: string;
  /** A name for people; at most 255 bytes. */
  readonly filename: string;
  /** Size of the bytes, if known: below 2^53, which every language can hold. */
  readonly sizeBytes: number;
  /** SHA-256 of the bytes in lower-case hex, if known. */
  readonly sha256: string;
  /** An absolute URI; at most 4 KiB. The server never fetches it. */
  readonly uri?: string;
  /** The bytes themselves; at most 256 KiB. */
  readonly inlineData?: Uint8Array;
}

/** One call of a tool that a model asks for. */
export interface ToolUse {
  /** Id of the call in its run, as the model gave it. */
  readonly toolCallId: string;
  /** Name of the tool; at most 255 bytes. */
  readonly name: string;
  /** A JSON object. */
  readonly argumentsJson?: string;
  /**
   * What the model wrote where it is not valid JSON. Such a call cannot be claimed: it is
   * closed with an error result when its step is committed.
   */
  readonly argumentsText?: string;
}

/** What became of a tool call. */
export interface ToolResult {
  /** The call. */
  readonly toolCallId: string;
  /** What became of it. */
  readonly outcome?: ToolResultOutcome;
  /** What the model is to see: text, media and data; at most 256 blocks. */
  readonly content: readonly Block[];
}

/** Reasoning of a model. */
export interface Reasoning {
  /** The text; empty where it is redacted. */
  readonly text: string;
  /** True where the provider withheld the text; `provider_json` may carry its sealed form. */
  readonly redacted: boolean;
}

/** Typed data of the application or the model. */
export interface Data {
  /** The IANA media type; required, at most 255 bytes. */
  readonly contentType: string;
  /** JSON text. */
  readonly json?: string;
  /** Bytes. */
  readonly binary?: Uint8Array;
}

/**
 * What stands for the first messages of a history when a model is asked. The
 * messages stay as they are.
 */
export interface Summary {
  /** The summary. */
  readonly text: string;
  /** Number of the last message that it covers; it covers all before it too. */
  readonly throughMessageNumber: number;
  /** When it was recorded. */
  readonly createTime?: Date;
  /** The model that wrote it, as its executor named it. */
  readonly model: string;
}

/**
 * One logical task started by one input. Its options and budgets are fixed
 * when its input is accepted. In the answer of a mutating call `input_preview`,
 * `options` and the texts of `outcome` are left out.
 */
export interface Run {
  /** Id in the namespace: `run_` and a UUIDv7. */
  readonly runId: string;
  /** The session it belongs to. */
  readonly sessionId: string;
  /** The name that executors poll for. */
  readonly agent: string;
  /** Whether it lives. */
  readonly phase?: RunPhase;
  /** The epoch of the newest activation, from 1. */
  readonly attempt: number;
  /** The newest activation; unset once the run is terminal. */
  readonly activation?: Activation;
  /** Where it stands. */
  readonly position?: RunPosition;
  /** What it was started with, defaults filled in. */
  readonly options?: RunOptions;
  /** What it has used. */
  readonly usage?: Usage;
  /** When it ends DEADLINE_EXCEEDED; unset: never. */
  readonly deadlineTime?: Date;
  /** The submission that started it. */
  readonly submissionId: string;
  /** The first 200 characters of its input. */
  readonly inputPreview: string;
  /** The first request to cancel it; unset where there was none. */
  readonly cancellation?: Cancellation;
  /** How it ended; unset while it lives. */
  readonly outcome?: RunOutcome;
  /** Of a child run, where it comes from; unset for a top-level one. */
  readonly parent?: ParentRun;
  /** When it was created; strictly grows in a session. */
  readonly createTime?: Date;
  /** When it ended; unset while it lives. */
  readonly endTime?: Date;
  /** The interaction that it waits for; set only while WAITING. */
  readonly interactionId: string;
  /** True once a pause was asked for and no boundary has taken it yet. */
  readonly pauseRequested: boolean;
  /** True where its lease ran out under recovery MANUAL: it waits for RestoreRun. */
  readonly stalled: boolean;
  /** Recoveries since its last progress. */
  readonly recoveries: number;
  /** The child runs that it waits for; set only while WAITING for children. */
  readonly waitingChildren?: ChildrenWait;
  /**
   * Of a run that is ending: what it will end with, once its last child run has ended. It
   * keeps phase and lane until then, and nobody works on it.
   */
  readonly endingCause?: RunStopReason;
  /** Child runs of it that have not ended. */
  readonly liveChildCount: number;
}

/** Where a child run comes from. */
export interface ParentRun {
  /** The run that started it. */
  readonly runId: string;
  /** The session of that run. */
  readonly sessionId: string;
  /** The tool call that it is the answer to. */
  readonly toolCallId: string;
  /** Parents above it: 1 to 8. */
  readonly depth: number;
}

/** A wait for child runs. */
export interface ChildrenWait {
  /** How many of them have to end. */
  readonly mode?: ChildrenWaitMode;
  /** Child runs of the open batch; in a request empty: all that live. At most 64. */
  readonly runIds: readonly string[];
}

/** How a run ended. */
export interface RunOutcome {
  /** Why it ended. */
  readonly stopReason?: RunStopReason;
  /** What ended it, where `stop_reason` is OUTCOME_UNKNOWN. */
  readonly cause?: RunStopReason;
  /** What went wrong; only of FAILED. */
  readonly failure?: RunFailure;
  /** Number of the message that is its answer; unset where it ended without one. */
  readonly outputMessageNumber: number;
  /** JSON that its executor gave as its result; empty means none. */
  readonly outputJson: string;
  /** Number of the session's last message when it ended: a fork of it holds 1 to this. */
  readonly messageCutoff: number;
}

/** What made a run fail. */
export interface RunFailure {
  /** What kind of failure it was; required. */
  readonly reason?: RunFailureReason;
  /** Text for people; at most 4 KiB. */
  readonly message: string;
  /** Whether the same input may well succeed later. */
  readonly retryable: boolean;
}

/** A request to cancel a run. The first one stands. */
export interface Cancellation {
  /** The reason that was given; may be empty. */
  readonly reason: string;
  /** When it was requested. */
  readonly requestTime?: Date;
  /** When the run is ended by force if its executor has not settled it. */
  readonly graceExpireTime?: Date;
}

/** One executor's turn at advancing a run. */
export interface Activation {
  /** Id in the namespace: `act_` and a UUIDv7. */
  readonly activationId: string;
  /** Attempt in the run, from 1. */
  readonly epoch: number;
  /** Why the turn is taken. */
  readonly kind?: ActivationKind;
  /** Whether somebody has it. */
  readonly state?: ActivationState;
  /** The executor that has it; unset while queued. */
  readonly executorId: string;
}

/**
 * What a run is started with. Unset fields take the defaults of the session
 * and the server when the input is accepted.
 */
export interface RunOptions {
  /** The name that executors poll for. Default: the session's default_agent, else the server's. */
  readonly agent: string;
  /** The model that the executor should use; at most 255 bytes. Default: the agent's own. */
  readonly model: string;
  /** Budgets of the run. */
  readonly limits?: RunLimits;
  /** Names of the tools that the run may use; empty: all of its agent's. At most 256. */
  readonly tools: readonly string[];
  /** How long an executor lets a tool run: up to 24 h. Default: the executor's own. */
  readonly toolTimeoutDurationSeconds?: number;
  /** What happens when a tool fails. Default: RETURN_TO_MODEL. */
  readonly toolErrorPolicy?: ToolErrorPolicy;
  /** What happens when a lease runs out. Default: AUTO. */
  readonly recovery?: Recovery;
  /** Recoveries without progress between them: 0 to 100, default 3. */
  readonly maxRecoveries?: number;
  /**
   * How long an executor may take to settle the run after a request to cancel it: 0 s to
   * 10 min, default 30 s. After it the run is ended by force.
   */
  readonly cancelGraceDurationSeconds?: number;
  /** A JSON object that the executor hands to the model with each request; at most 64 KiB. */
  readonly requestOptionsJson: string;
}

/** Budgets of a run. Nothing resets them. */
export interface RunLimits {
  /** Model steps that may be reserved: 1 to 10,000, default 20. */
  readonly maxModelSteps: number;
  /**
   * Tool calls of all model steps: up to 100,000; 0 (default): as many as come. A step with
   * more calls than are left ends the run.
   */
  readonly maxToolCalls: number;
  /**
   * Input and output tokens of all model steps: below 2^53, which every language can hold;
   * 0 (default): as many as come.
   */
  readonly maxTotalTokens: number;
  /**
   * Cost of all model steps and summaries in millionths of a US dollar: below 2^53; 0 (default):
   * no limit.
   */
  readonly maxCostUsdMicros: number;
  /** From the creation of the run to its deadline: up to 30 days. Default: none. */
  readonly maxDurationSeconds?: number;
  /**
   * How long an interaction without an expiry of its own stays open: up to 30 days.
   * Default: for ever.
   */
  readonly interactionTimeoutDurationSeconds?: number;
  /**
   * How long the run waits for its first executor: up to 30 days. Default: for ever. After it
   * the run ends FAILED with NO_EXECUTOR.
   */
  readonly startTimeoutDurationSeconds?: number;
}

/** What a run, or a step of it, has used. Of a step or a summary each number is at most 10^12. */
export interface Usage {
  /** Model steps reserved; only of a run. */
  readonly modelStepsReserved: number;
  /** Model steps committed; only of a run. */
  readonly modelStepsCommitted: number;
  /** Tokens read by the model. */
  readonly inputTokens: number;
  /** Tokens written by the model. */
  readonly outputTokens: number;
  /** Of the input tokens, those that the provider read from its cache. */
  readonly cachedInputTokens: number;
  /** Of the output tokens, those spent on reasoning. */
  readonly reasoningTokens: number;
  /** Tool calls that model steps asked for; only of a run. */
  readonly toolCalls: number;
  /** Tokens read to summarise the history; only of a run, and in no budget. */
  readonly compactionInputTokens: number;
  /** Tokens written as summaries; only of a run, and in no budget. */
  readonly compactionOutputTokens: number;
  /**
   * Cost in millionths of a US dollar, as its executor reports it; of a run with that of its
   * summaries. That of child runs is theirs.
   */
  readonly costUsdMicros: number;
}

/** The right to write for a run: every write of an executor carries it. */
export interface Fence {
  /** The session of the run. */
  readonly sessionId: string;
  /** The run. */
  readonly runId: string;
  /** The activation that was leased. */
  readonly activationId: string;
  /** The attempt that was leased, from 1. */
  readonly epoch: number;
}

/**
 * One accepted user input and what became of it. It starts PENDING or
 * DELIVERED and has exactly one end.
 */
export interface Submission {
  /** Id in the namespace: `sub_` and a UUIDv7. */
  readonly submissionId: string;
  /** The session that took it. */
  readonly sessionId: string;
  /**
   * The run it steers or becomes. Of a pending next run the id is reserved: the run does not
   * exist yet.
   */
  readonly runId: string;
  /** What was asked. */
  readonly mode?: SubmissionMode;
  /** What was done. */
  readonly route?: SubmissionRoute;
  /** How far it has come. */
  readonly state?: SubmissionState;
  /** Why it failed; unset unless `state` is FAILED. */
  readonly failureReason?: SubmissionFailureReason;
  /** The input. Left out in the answer of Submit, WithdrawSubmission and ForkSession. */
  readonly content: readonly Block[];
  /**
   * True where `content` is not the whole: left out, or one text block with its first 200
   * characters, in which media stands as a label such as [image].
   */
  readonly contentTruncated: boolean;
  /** Number of its message once that is in the history; unset before. */
  readonly messageNumber: number;
  /** Entries of the application, as submitted. Left out in the answer of Submit. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The request_id it was submitted with; empty where there was none. */
  readonly requestId: string;
  /** When it was accepted. */
  readonly createTime?: Date;
  /** When it reached its end; unset while pending. */
  readonly settleTime?: Date;
}

/**
 * A conversation: an append-only list of committed messages, labels, and one
 * lane that holds at most one live top-level run.
 */
export interface Session {
  /** Id in the namespace: the caller's, or `ses_` and a UUIDv7. Never used again. */
  readonly sessionId: string;
  /** Name for people; may be empty. */
  readonly displayName: string;
  /** Labels to list sessions by. */
  readonly labels: Readonly<Record<string, string>>;
  /** A JSON object of the application; empty means none. */
  readonly metadataJson: string;
  /** Agent of runs that name none; empty where the server's default applies. */
  readonly defaultAgent: string;
  /** Whether the session takes new input. */
  readonly state?: SessionState;
  /** The live run, unset while the session is idle. */
  readonly currentRunId: string;
  /** Number of committed messages, which is the number of the last one. */
  readonly messageCount: number;
  /** The direct source of a fork; unset otherwise. */
  readonly forkedFrom?: ForkSource;
  /**
   * Of the session of a child run, the run that started it; unset otherwise. Such a session
   * takes steers and answers, and no runs of its own.
   */
  readonly parentRunId: string;
  /** Grows by one with each transaction that appends messages or changes the record. */
  readonly revision: number;
  /** Opaque tag of the record (name, labels, metadata, default agent, state) for UpdateSession. */
  readonly etag: string;
  /** When the session was created. */
  readonly createTime?: Date;
  /** When the revision last grew. */
  readonly updateTime?: Date;
  /** Number of the last message that the newest summary covers; unset where there is none. */
  readonly compactedThrough: number;
}

/** Where a forked session comes from. */
export interface ForkSource {
  /** The session that was forked; it may have been deleted since. */
  readonly sessionId: string;
  /** The terminal run whose end is the last thing that the fork took over. */
  readonly runId: string;
}

/**
 * One consistent read of a session's committed rows, at most 3.5 MiB. Go on
 * from here with StreamEvents and `after_sequence` = `sequence`: nothing is
 * missed and nothing repeated.
 */
export interface LiveState {
  /** The session's record. */
  readonly session?: Session;
  /** The live run; unset while the session is idle. */
  readonly run?: Run;
  /**
   * The interaction that the live run waits for, if any, and the questions of its child runs.
   * Prompts that do not fit are left out; ListInteractions has them.
   */
  readonly openInteractions: readonly Interaction[];
  /**
   * Pending steers, then pending next runs, each in the order in which they will be
   * delivered. Content over 4 KiB is cut to its first 200 characters, which
   * `content_truncated` marks.
   */
  readonly pendingSubmissions: readonly Submission[];
  /** The newest messages, ascending, as many as were asked for and fit 2 MiB. */
  readonly messages: readonly Message[];
  /** Number of the first message in `messages`; unset when there is none. */
  readonly firstMessageNumber: number;
  /** What the session would accept now. */
  readonly allowedCommands: readonly Command[];
  /** True while the live run waits in the queue and no executor polls for its agent. */
  readonly waitingForExecutor: boolean;
  /** The sequence at which all of this is true. */
  readonly sequence: number;
}

/** A durable fact, appended in the transaction of the change that it reports. */
export interface EventEnvelope {
  /** Place in the session's order: 1, 2, ... without gaps, over restarts. */
  readonly sequence: number;
  /** The session. */
  readonly sessionId: string;
  /** When it was committed. */
  readonly eventTime?: Date;
  /**
   * The run that it is about; of a pending next run the reserved id. Unset where it is about
   * no run.
   */
  readonly runId: string;
  /**
   * Place among the events of its run, from 1; for display only. Unset while the run does
   * not exist.
   */
  readonly runSequence: number;
  /** The activation that was current; unset where there was none. */
  readonly activationId: string;
  /** The attempt that was current; unset where there was none. */
  readonly attempt: number;
  /** Who caused it: `client` or `client:` and a name, `executor:` and its id, or `server`. */
  readonly actor: string;
  /** The request_id of the call that caused it; empty where there was none. */
  readonly requestId: string;
  /**
   * Whether a reader that does not know the type may skip it. Where it is false such a
   * reader reads the live state again.
   */
  readonly maySkip: boolean;
  /** The message itself, of TYPE_MESSAGE_APPENDED and only where it was asked for. */
  readonly message?: Message;
}

/** The bodies of events, by their type. */
export interface EventBodies {
  "session.created": SessionCreated;
  "session.updated": SessionUpdated;
  "session.closed": SessionClosed;
  "session.reopened": SessionReopened;
  "session.forked": SessionForked;
  "session.compacted": SessionCompacted;
  "session.imported": SessionImported;
  "session.deleted": SessionDeleted;
  "submission.pending": SubmissionPending;
  "submission.moved": SubmissionMoved;
  "submission.delivered": SubmissionDelivered;
  "submission.failed": SubmissionFailed;
  "submission.withdrawn": SubmissionWithdrawn;
  "run.created": RunCreated;
  "run.waiting": RunWaiting;
  "run.cancellation_requested": RunCancellationRequested;
  "run.pause_requested": RunPauseRequested;
  "run.paused": RunPaused;
  "run.unpaused": RunUnpaused;
  "run.recovering": RunRecovering;
  "run.stalled": RunStalled;
  "run.ending": RunEnding;
  "run.terminal": RunTerminal;
  "activation.queued": ActivationQueued;
  "activation.leased": ActivationLeased;
  "activation.ended": ActivationEnded;
  "activation.abandoned": ActivationAbandoned;
  "message.appended": MessageAppended;
  "model_step.reserved": ModelStepReserved;
  "model_step.committed": ModelStepCommitted;
  "tool_call.prepared": ToolCallPrepared;
  "tool_call.claimed": ToolCallClaimed;
  "tool_call.committed": ToolCallCommitted;
  "tool_call.outcome_unknown": ToolCallOutcomeUnknown;
  "tool_call.cancelled": ToolCallCancelled;
  "interaction.opened": InteractionOpened;
  "interaction.answered": InteractionAnswered;
  "interaction.closed": InteractionClosed;
  "child_run.started": ChildRunStarted;
  "child_run.finished": ChildRunFinished;
}

/** A durable fact, appended in the transaction of the change that it reports. */
export type Event =
  | { [T in keyof EventBodies]: EventEnvelope & { readonly type: T; readonly body: EventBodies[T] } }[keyof EventBodies]
  | (EventEnvelope & { readonly type: "unknown"; readonly body?: undefined });

/** A session was created. */
export interface SessionCreated {
  /** Number of messages it began with: 0, or what a fork or an import took over. */
  readonly messageCount: number;
  /** Of the session of a child run, the run that started it. */
  readonly parentRunId: string;
}

/** The record of a session was changed. */
export interface SessionUpdated {
  /** The revision after the change. */
  readonly revision: number;
}

/** A session was closed. */
export interface SessionClosed {
}

/** A session was opened again. */
export interface SessionReopened {
}

/** A session was forked. The same body stands on both sides. */
export interface SessionForked {
  /** The session that was forked. */
  readonly sourceSessionId: string;
  /** The run at whose end it was forked. */
  readonly sourceRunId: string;
  /** The new session. */
  readonly sessionId: string;
  /** Number of messages that the new session took over. */
  readonly messageCount: number;
}

/** The first messages of a session were summarised for the model. The messages stay. */
export interface SessionCompacted {
  /** Number of the last message that the summary covers. */
  readonly throughMessageNumber: number;
  /** What it took. */
  readonly usage?: Usage;
  /** The model that wrote it, as its executor named it. */
  readonly model: string;
}

/**
 * A session was made from an archive. Its runs and messages have no events here: they are
 * read as those that a fork took over.
 */
export interface SessionImported {
  /** The session that the archive was made of, as the archive calls it. */
  readonly sourceSessionId: string;
  /** Number of messages that it took over. */
  readonly messageCount: number;
  /** Number of runs that it took over: its first fork points. */
  readonly runCount: number;
  /** SHA-256 of what was taken over, in lower-case hex, as in the end of its archive. */
  readonly contentDigest: string;
}

/** A session was deleted. Pending input and a live run end with it. */
export interface SessionDeleted {
}

/** An input was queued. */
export interface SubmissionPending {
  /** The input. */
  readonly submissionId: string;
  /** What was asked. */
  readonly mode?: SubmissionMode;
  /** What was done: STEER or FOLLOW_UP. */
  readonly route?: SubmissionRoute;
}

/** A steer that missed its run became a follow-up. The event's run_id is the new one. */
export interface SubmissionMoved {
  /** The input. */
  readonly submissionId: string;
  /** The run that it missed. */
  readonly fromRunId: string;
  /** What was asked. */
  readonly mode?: SubmissionMode;
}

/** A queued input was delivered: a steer into the history, a next run by its creation. */
export interface SubmissionDelivered {
  /** The input. */
  readonly submissionId: string;
  /** What was asked. */
  readonly mode?: SubmissionMode;
  /** What was done: STEER or FOLLOW_UP. */
  readonly route?: SubmissionRoute;
  /** Number of its message. */
  readonly messageNumber: number;
}

/** A queued input will not be delivered. */
export interface SubmissionFailed {
  /** The input. */
  readonly submissionId: string;
  /** What was asked. */
  readonly mode?: SubmissionMode;
  /** What was done: STEER or FOLLOW_UP. */
  readonly route?: SubmissionRoute;
  /** Why. */
  readonly reason?: SubmissionFailureReason;
}

/** A queued input was taken back. */
export interface SubmissionWithdrawn {
  /** The input. */
  readonly submissionId: string;
  /** What was asked. */
  readonly mode?: SubmissionMode;
  /** What was done: STEER or FOLLOW_UP. */
  readonly route?: SubmissionRoute;
}

/** A run was created. */
export interface RunCreated {
  /** The submission that started it. */
  readonly submissionId: string;
  /** The name that executors poll for. */
  readonly agent: string;
  /** Of a child run, where it comes from. */
  readonly parent?: ParentRun;
}

/** Cancellation of a run was requested for the first time. */
export interface RunCancellationRequested {
  /** Whether the run was replaced rather than interrupted. */
  readonly replaced: boolean;
}

/** A run waits for the answer to its interaction, or for child runs. */
export interface RunWaiting {
  /** The interaction; unset where it waits for child runs. */
  readonly interactionId: string;
  /** The child runs; unset where it waits for an answer. */
  readonly children?: ChildrenWait;
}

/** A pause of a run was requested. */
export interface RunPauseRequested {
}

/** A run was paused: nobody has it until it is unpaused. */
export interface RunPaused {
}

/** A pause, or the request for one, was taken back. */
export interface RunUnpaused {
}

/** A run was taken from an executor that was lost, and will go on. */
export interface RunRecovering {
  /** Recoveries since its last progress, this one included; 0: not counted. */
  readonly recoveries: number;
  /** When it may be leased again. */
  readonly notBeforeTime?: Date;
}

/** A run was taken from an executor that was lost, and waits for RestoreRun. */
export interface RunStalled {
}

/** A run will end once its child runs have ended; they are asked to. */
export interface RunEnding {
  /** What it will end with. */
  readonly stopReason?: RunStopReason;
  /** What ends it, where `stop_reason` is OUTCOME_UNKNOWN. */
  readonly cause?: RunStopReason;
}

/** A run ended. */
export interface RunTerminal {
  /** Why. */
  readonly stopReason?: RunStopReason;
  /** What ended it, where `stop_reason` is OUTCOME_UNKNOWN. */
  readonly cause?: RunStopReason;
  /** What kind of failure; only of FAILED. GetRun has the text. */
  readonly failureReason?: RunFailureReason;
  /** Number of the message that is its answer; unset where it ended without one. */
  readonly outputMessageNumber: number;
  /** Number of the session's last message when it ended. */
  readonly messageCutoff: number;
}

/** An activation waits for an executor. */
export interface ActivationQueued {
  /** Why the turn is taken. */
  readonly kind?: ActivationKind;
  /** The name that executors poll for. */
  readonly agent: string;
}

/** An executor leased an activation. */
export interface ActivationLeased {
  /** The executor. */
  readonly executorId: string;
}

/** An activation ended by an act of its executor. */
export interface ActivationEnded {
  /** The act. */
  readonly reason?: ActivationEndedReason;
}

/** An activation ended without an act of its executor. */
export interface ActivationAbandoned {
  /** What ended it. */
  readonly reason?: ActivationAbandonedReason;
}

/** A message was appended. */
export interface MessageAppended {
  /** Its number. */
  readonly number: number;
  /** Whose turn it is. */
  readonly role?: MessageRole;
  /** How it came to be. */
  readonly author?: MessageAuthor;
  /** The model step it belongs to, as in Message. */
  readonly step: number;
  /** The submission it came from. */
  readonly submissionId: string;
  /** Ties it to the deltas that preceded it. */
  readonly modelStreamId: string;
}

/** A model step was reserved: a request to the model may now be sent. */
export interface ModelStepReserved {
  /** The step, from 1 in its run. */
  readonly step: number;
  /** Names the deltas of this request. */
  readonly modelStreamId: string;
}

/** A model step was committed. Its message.appended follows. */
export interface ModelStepCommitted {
  /** The step. */
  readonly step: number;
  /** Names the deltas of its request. */
  readonly modelStreamId: string;
  /** What it used. */
  readonly usage?: Usage;
  /** The model that answered, as its executor named it. */
  readonly model: string;
  /** Why the model stopped, in its provider's word. */
  readonly finishReason: string;
}

/** A tool call may be claimed. */
export interface ToolCallPrepared {
  /** The call. */
  readonly toolCallId: string;
  /** The tool. */
  readonly name: string;
  /** Place in its batch, from 1. */
  readonly ordinal: number;
}

/** A tool call was claimed. */
export interface ToolCallClaimed {
  /** The call. */
  readonly toolCallId: string;
  /** Whether it may be run again if its result is lost. */
  readonly idempotent: boolean;
}

/**
 * The result of a tool call was committed. Its message.appended comes once those of all
 * calls before it in the batch have come.
 */
export interface ToolCallCommitted {
  /** The call. */
  readonly toolCallId: string;
  /** What became of it. */
  readonly outcome?: ToolResultOutcome;
}

/** A claimed tool call has no result, and will get none. */
export interface ToolCallOutcomeUnknown {
  /** The call. */
  readonly toolCallId: string;
}

/** A tool call was never run, and will not be. */
export interface ToolCallCancelled {
  /** The call. */
  readonly toolCallId: string;
}

/** An interaction was opened. */
export interface InteractionOpened {
  /** The interaction. */
  readonly interactionId: string;
  /** Its version. */
  readonly version: number;
  /** When it expires; unset: never. */
  readonly expireTime?: Date;
  /** Of a proxy, the question of a child run that it shows. */
  readonly proxyFor?: ProxySource;
}

/** An interaction was answered. */
export interface InteractionAnswered {
  /** The interaction. */
  readonly interactionId: string;
  /** The version that was answered. */
  readonly version: number;
}

/** An interaction ended without an answer. */
export interface InteractionClosed {
  /** The interaction. */
  readonly interactionId: string;
  /** Why. */
  readonly reason?: InteractionCloseReason;
}

/** A run started a child run. */
export interface ChildRunStarted {
  /** The tool call that it will answer. */
  readonly toolCallId: string;
  /** The child run. */
  readonly childRunId: string;
  /** Its session. */
  readonly childSessionId: string;
  /** The name that its executors poll for. */
  readonly agent: string;
}

/** A child run ended, and its parent has taken that in. The result of its call follows. */
export interface ChildRunFinished {
  /** The tool call that it answers. */
  readonly toolCallId: string;
  /** The child run. */
  readonly childRunId: string;
  /** Why it ended. */
  readonly stopReason?: RunStopReason;
}

/**
 * A piece of a model answer on its way. Best effort: pieces may be lost or
 * merged; the message that is appended replaces them all. A reader drops what
 * it holds of a stream at its message.appended, at a newer stream of the same
 * step, when the activation ends, and at run.terminal.
 */
export interface Delta {
  /** Names the request to the model. */
  readonly modelStreamId: string;
  /** The run. */
  readonly runId: string;
  /** The activation that sent the request. */
  readonly activationId: string;
  /** The model step. */
  readonly step: number;
  /** The block of the answer, from 0. */
  readonly blockIndex: number;
  /** What the block is. */
  readonly kind?: DeltaKind;
  /** The revision of the block that `append_text` extends; unset with `snapshot_text`. */
  readonly baseRevision: number;
  /** The revision of the block after this piece, from 1. */
  readonly revision: number;
  /** Text to append, by a reader that holds exactly `base_revision`. */
  readonly appendText?: string;
  /** The whole text of the block so far. */
  readonly snapshotText?: string;
  /** The block is complete as it stands at `base_revision`. */
  readonly blockDone?: boolean;
}

/** The state of a session's control plane. The newest replaces all before it. */
export interface Control {
  /** The live run; unset while the session is idle. */
  readonly runId: string;
  /** Its phase; unset while the session is idle. */
  readonly phase?: RunPhase;
  /** Its newest activation; unset while the session is idle. */
  readonly activation?: Activation;
  /** True once cancellation of the live run was requested. */
  readonly cancelling: boolean;
  /** True once a pause of the live run was asked for and no boundary has taken it. */
  readonly pauseRequested: boolean;
  /** Number of pending steers. */
  readonly pendingSteers: number;
  /** Number of pending next runs. */
  readonly pendingNextRuns: number;
  /** What the session would accept. */
  readonly allowedCommands: readonly Command[];
  /** True while the live run waits in the queue and no executor polls for its agent. */
  readonly waitingForExecutor: boolean;
  /** The sequence at which this is true. */
  readonly asOfSequence: number;
}

/** What a session is created with. */
export interface SessionSpec {
  /** A name for people; at most 255 bytes. */
  readonly displayName: string;
  /** Labels: at most 32; keys match `[a-z0-9][a-z0-9._/-]{0,62}`, values to 255 bytes. */
  readonly labels: Readonly<Record<string, string>>;
  /** A JSON object; at most 64 KiB; empty means none. */
  readonly metadataJson: string;
  /** Agent of runs that name none. */
  readonly defaultAgent: string;
}

/** Request of CreateSession. */
export interface CreateSessionRequest {
  /** Id of the session; empty: the server makes one. */
  readonly sessionId: string;
  /** A name for people; at most 255 bytes. */
  readonly displayName: string;
  /** Labels, as in SessionSpec. */
  readonly labels: Readonly<Record<string, string>>;
  /** A JSON object; at most 64 KiB; empty means none. */
  readonly metadataJson: string;
  /** Agent of runs that name none. */
  readonly defaultAgent: string;
  /** What to do where the id is taken. Default: ERROR. */
  readonly ifExists?: CreateSessionRequestIfExists;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of CreateSession. */
export interface CreateSessionResponse {
  /** The session. */
  readonly session?: Session;
  /** True where this call (or the one that it repeats) created it. */
  readonly created: boolean;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of GetSession. */
export interface GetSessionRequest {
  /** The session; required. */
  readonly sessionId: string;
}

/** Answer of GetSession. */
export interface GetSessionResponse {
  /** The session. */
  readonly session?: Session;
}

/** Request of UpdateSession. */
export interface UpdateSessionRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** New name; at most 255 bytes. */
  readonly displayName?: string;
  /** New JSON object; at most 64 KiB; empty removes it. */
  readonly metadataJson?: string;
  /** New default agent; empty removes it. */
  readonly defaultAgent?: string;
  /** Labels to add or replace; at most 32 in the session. */
  readonly setLabels: Readonly<Record<string, string>>;
  /** Keys of labels to remove; done before set_labels. At most 32. */
  readonly removeLabels: readonly string[];
  /** Only if this is the session's etag; empty: whatever it is. */
  readonly etag: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of UpdateSession. */
export interface UpdateSessionResponse {
  /** The session. */
  readonly session?: Session;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of DeleteSession. */
export interface DeleteSessionRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** Also while a run is live, which ends with it. */
  readonly force: boolean;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of DeleteSession. */
export interface DeleteSessionResponse {
  /** The sequence of session.deleted, the session's last event. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of CloseSession. */
export interface CloseSessionRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** Also interrupt the live run, in the same transaction. */
  readonly cancelRun: boolean;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of CloseSession. */
export interface CloseSessionResponse {
  /** The session. */
  readonly session?: Session;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of ReopenSession. */
export interface ReopenSessionRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of ReopenSession. */
export interface ReopenSessionResponse {
  /** The session. */
  readonly session?: Session;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of Submit. */
export interface SubmitRequest {
  /** The session. May be empty with create_session: the server makes an id. */
  readonly sessionId: string;
  /** What is to happen while a run is live. Default: START. */
  readonly mode?: SubmissionMode;
  /** Only if this run is the live one; with STEER, AUTO and REPLACE alone. */
  readonly targetRunId: string;
  /** What happens to a steer that misses its run; with STEER and AUTO alone. Default: FAIL. */
  readonly onMiss?: SubmissionOnMiss;
  /** Options of the run that is started; STEER refuses them, AUTO ignores them where it steers. */
  readonly runOptions?: RunOptions;
  /** Create the session with this where it does not exist. A deleted one is SESSION_NOT_FOUND. */
  readonly createSession?: SessionSpec;
  /** The input: 1 to 256 blocks, 3 MiB in all; not empty, not white space alone. */
  readonly content: readonly Block[];
  /** Only if this is the session's revision. */
  readonly expectedRevision?: number;
  /** Entries of the application, kept with the message: at most 32, 4 KiB in all. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of Submit. */
export interface SubmitResponse {
  /** The submission, without its content. */
  readonly submission?: Submission;
  /** True where the session was created by it. */
  readonly sessionCreated: boolean;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of WithdrawSubmission. */
export interface WithdrawSubmissionRequest {
  /** The submission; required. */
  readonly submissionId: string;
  /** The session, where the caller wants it checked. */
  readonly sessionId: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of WithdrawSubmission. */
export interface WithdrawSubmissionResponse {
  /** The submission, without its content. */
  readonly submission?: Submission;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of GetSubmission. */
export interface GetSubmissionRequest {
  /** The submission; required. */
  readonly submissionId: string;
  /** The session, where the caller wants it checked. */
  readonly sessionId: string;
}

/** Answer of GetSubmission. */
export interface GetSubmissionResponse {
  /** The submission. */
  readonly submission?: Submission;
}

/** Request of InterruptRun. */
export interface InterruptRunRequest {
  /** The session; may be empty where run_id is given. */
  readonly sessionId: string;
  /** Only this run; empty: whichever is live. */
  readonly runId: string;
  /** For people; at most 1 KiB. */
  readonly reason: string;
  /**
   * How long to wait for the run to end: 0 (default) to 300 s. The answer comes earlier, with
   * what is true then, where the call's deadline is near or there is no place to wait.
   */
  readonly waitDurationSeconds?: number;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of InterruptRun. */
export interface InterruptRunResponse {
  /** The run. */
  readonly run?: Run;
  /** Whether it has ended. */
  readonly settled: boolean;
  /** The session's sequence after the request was taken. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id; a wait is made anew. */
  readonly replayed: boolean;
}

/** Request of GetLiveState. */
export interface GetLiveStateRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** How many of the newest messages: at most 200, default 50. */
  readonly messageLimit?: number;
  /** Not before this sequence is reached; SEQUENCE_AHEAD where it is not. */
  readonly minSequence: number;
}

/** Answer of GetLiveState. */
export interface GetLiveStateResponse {
  /** The live state. */
  readonly liveState?: LiveState;
}

/** Request of StreamEvents. */
export interface StreamEventsRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** After this sequence; 0 is the first event. */
  readonly afterSequence?: number;
  /** With the newest this many events: 0 to 1,000. */
  readonly lastEvents?: number;
  /** Whether to go on with what comes. Default: true. */
  readonly follow?: boolean;
  /**
   * Only events of these runs; at most 64. The stream ends OK after the terminal events of
   * all of them.
   */
  readonly runIds: readonly string[];
  /** Only events of these types; at most 64. */
  readonly types: readonly EventType[];
  /** Put the messages into their message.appended events. */
  readonly includeMessages: boolean;
  /** Also send deltas, as they come. */
  readonly includeDeltas: boolean;
  /** Also send the control state, first and after each change of it. */
  readonly includeControl: boolean;
}

/** One frame of the stream. */
export interface StreamEventsResponse {
  /** Events in order: at most 256 and 1 MiB. */
  readonly batch?: EventBatch;
  /** Pieces of model answers on their way. */
  readonly deltas?: DeltaBatch;
  /** The control state; the newest replaces all before it. */
  readonly control?: Control;
  /** Where the stream is. */
  readonly bookmark?: Bookmark;
}

/** Events in order. */
export interface EventBatch {
  /** The events, ascending by sequence. */
  readonly events: readonly Event[];
}

/** Pieces of model answers on their way. */
export interface DeltaBatch {
  /** The pieces, in order within a block. */
  readonly deltas: readonly Delta[];
}

/** Where a stream is. Sent when the reader has caught up, and every 15 s while idle. */
export interface Bookmark {
  /** All events up to this one were sent or filtered out; go on from here. */
  readonly sequence: number;
  /** Whether this was the newest event when the bookmark was made. */
  readonly caughtUp: boolean;
  /** The server's time. */
  readonly serverTime?: Date;
}

/** Request of ListAgents. */
export interface ListAgentsRequest {
  /** How many: default 50, above 1,000 cut to it. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. */
  readonly pageToken: string;
}

/** Answer of ListAgents. */
export interface ListAgentsResponse {
  /** The agents, ascending by name. */
  readonly agents: readonly Agent[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** A name that executors poll for. */
export interface Agent {
  /** The name. */
  readonly name: string;
  /** When an executor last polled for it; unset where none did since the server started. */
  readonly lastPollTime?: Date;
  /** Executors that polled for it within the last 60 s, or poll now. */
  readonly executorCount: number;
  /** Activations that wait. */
  readonly queuedCount: number;
  /** Activations that executors have. */
  readonly leasedCount: number;
}

/** Request of PauseRun. */
export interface PauseRunRequest {
  /** The session; may be empty where run_id is given. */
  readonly sessionId: string;
  /** Only this run; empty: whichever is live. */
  readonly runId: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of PauseRun. */
export interface PauseRunResponse {
  /** What became of it: REQUESTED or PAUSED. */
  readonly receipt?: PauseReceipt;
  /** The run. */
  readonly run?: Run;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of UnpauseRun. */
export interface UnpauseRunRequest {
  /** The session; may be empty where run_id is given. */
  readonly sessionId: string;
  /** Only this run; empty: whichever is live. */
  readonly runId: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of UnpauseRun. */
export interface UnpauseRunResponse {
  /** What became of it: RESUMED or UNCHANGED. */
  readonly receipt?: PauseReceipt;
  /** The run. */
  readonly run?: Run;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of AnswerInteraction. */
export interface AnswerInteractionRequest {
  /** The run that waits; required. */
  readonly runId: string;
  /** The interaction; required. */
  readonly interactionId: string;
  /** The version that is answered; required. */
  readonly version: number;
  /** The answer, of the kind of the prompt; required. */
  readonly answer?: InteractionAnswer;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of AnswerInteraction. For a proxy: of the question that it shows. */
export interface AnswerInteractionResponse {
  /** The interaction, without its prompt and answer. */
  readonly interaction?: Interaction;
  /** The run. */
  readonly run?: Run;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of CompleteExternal. */
export interface CompleteExternalRequest {
  /** The token of suspend's answer; required. */
  readonly token: string;
  /** What the other system says; required. */
  readonly answer?: ExternalAnswer;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of CompleteExternal. */
export interface CompleteExternalResponse {
  /** The interaction, without its prompt. */
  readonly interaction?: Interaction;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of RestoreRun. */
export interface RestoreRunRequest {
  /** The run; required. */
  readonly runId: string;
  /** The activation that the caller has seen; required where the run is ACTIVE. */
  readonly expectedActivationId: string;
  /** Also where the lease is live: its executor is cut off. */
  readonly force: boolean;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of RestoreRun. */
export interface RestoreRunResponse {
  /** The run. */
  readonly run?: Run;
  /** What became of it. */
  readonly outcome?: RestoreRunResponseOutcome;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/**
 * One record of an archive: what ExportSession gives and ImportSession takes.
 *
 * An archive is the history of one session as a list of records, in this order: one header,
 * its runs, its summaries, its messages, its events where they were asked for, and one end.
 * As JSON, one record a line, it is the file that `runlane export` writes.
 */
export interface ArchiveRecord {
  /** The first one. */
  readonly header?: ArchiveHeader;
  /** A run that has ended; ascending by creation. */
  readonly run?: ArchivedRun;
  /** A summary that the session or one of its runs has; ascending by what it covers. */
  readonly summary?: Summary;
  /** A message; ascending, from number 1. */
  readonly message?: Message;
  /** An event of the session, for who reads the archive: an import counts it and leaves it. */
  readonly event?: Event;
  /** The last one. */
  readonly end?: ArchiveEnd;
}

/**
 * What an archive begins with. An import takes `format_version` and `record`; the rest tells
 * where the archive comes from.
 */
export interface ArchiveHeader {
  /** Version of the format: 1. */
  readonly formatVersion: number;
  /** What the session is called, its labels, its metadata and its default agent. */
  readonly record?: SessionSpec;
  /** Id of the session; of what was not a session of Runlane, a name of it. */
  readonly sessionId: string;
  /** The sequence at which the archive is true; unset where it was no session of Runlane. */
  readonly sequence: number;
  /**
   * The run that was live at that sequence; empty: none was. Its record says how it ended
   * here: see ExportSession.
   */
  readonly liveRunId: string;
  /** Direct source of a fork, the source of that, and so on; at most 100. */
  readonly ancestors: readonly ForkSource[];
  /** Of the session of a child run: its parent, the parent of that, and so on. */
  readonly parents: readonly ParentRun[];
  /** When the archive was made. */
  readonly exportTime?: Date;
  /** What made it: `runlane` and its version, or the format that it was converted from. */
  readonly source: string;
}

/**
 * A run as an archive has it: it has ended. Its ids are those that it had where it was
 * exported; an import gives it new ones.
 */
export interface ArchivedRun {
  /** Its id; unique in the archive. */
  readonly runId: string;
  /** What it was started with, defaults filled in; `agent` is required. */
  readonly options?: RunOptions;
  /**
   * Number of its first message, which is its input. The first run begins after what the
   * session took over from another one; each next run where the one before it ended.
   */
  readonly firstMessageNumber: number;
  /** Number of its last message. */
  readonly messageCutoff: number;
  /** Why it ended; required. */
  readonly stopReason?: RunStopReason;
  /** What ended it, where `stop_reason` is OUTCOME_UNKNOWN. */
  readonly cause?: RunStopReason;
  /** What kind of failure it was; only of FAILED. */
  readonly failureReason?: RunFailureReason;
  /** Text for people; at most 4 KiB. */
  readonly failureMessage: string;
  /** Whether the same input may well succeed later. */
  readonly failureRetryable: boolean;
  /** Number of the message that is its answer; unset where it ended without one. */
  readonly outputMessageNumber: number;
  /** JSON that its executor gave as its result; empty means none. */
  readonly outputJson: string;
  /** What it has used. */
  readonly usage?: Usage;
  /** How many attempts it took, from 1. */
  readonly attempt: number;
  /** Why its cancellation was asked for; at most 1 KiB. */
  readonly cancelReason: string;
  /** When its cancellation was asked for; unset: it was not. */
  readonly cancelRequestTime?: Date;
  /** When it was created; required, later than the run before it, and not in the future. */
  readonly createTime?: Date;
  /** When it ended; required, not in the future. */
  readonly endTime?: Date;
  /** What the summary covers that stood when it ended; unset: there was none. */
  readonly summaryThrough: number;
}

/** What an archive ends with. Without it an archive is not whole. */
export interface ArchiveEnd {
  /** Messages in the archive. */
  readonly messageCount: number;
  /** Runs in the archive. */
  readonly runCount: number;
  /**
   * SHA-256 in lower-case hex of what the archive says, ids of runs and of the session left
   * out (docs/migrating.md tells how it is made). An import that finds another one refuses
   * the archive, and an export of what was imported has the same one. Empty in an archive
   * that was made by other means: it is not tested then.
   */
  readonly contentDigest: string;
}

/** Request of ListStalledRuns. */
export interface ListStalledRunsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
}

/** Answer of ListStalledRuns. */
export interface ListStalledRunsResponse {
  /** The runs. */
  readonly runs: readonly Run[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of SettleRun. */
export interface SettleRunRequest {
  /** The run; required. */
  readonly runId: string;
  /** How: FAILED (default) or CANCELLED. */
  readonly stopReason?: RunStopReason;
  /** For people; at most 1 KiB. */
  readonly reason: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of SettleRun. */
export interface SettleRunResponse {
  /** The run. */
  readonly run?: Run;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of CreateKey. */
export interface CreateKeyRequest {
  /** Whom it stands for; required. */
  readonly name: string;
  /**
   * The namespace that it opens; empty: that of the call; `*`: every one, for which the
   * caller's own credential must open every one.
   */
  readonly namespace: string;
  /** What it may do; at least one scope. */
  readonly scopes: readonly ApiKeyScope[];
  /** How long it lives; unset: until it is revoked. */
  readonly expireDurationSeconds?: number;
  /** Makes the call idempotent; empty = none. The answer of a repeat has no secret. */
  readonly requestId: string;
}

/** Answer of CreateKey. */
export interface CreateKeyResponse {
  /** The key. */
  readonly key?: ApiKey;
  /**
   * What proves it: sent as `authorization: Bearer` and this. It is told once and kept
   * nowhere. Where it was lost, revoke the key and make another one.
   */
  readonly secret: string;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of ListKeys. */
export interface ListKeysRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** Also those that have expired or were revoked. */
  readonly includeEnded: boolean;
}

/** Answer of ListKeys. */
export interface ListKeysResponse {
  /** The keys. */
  readonly keys: readonly ApiKey[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of RevokeKey. */
export interface RevokeKeyRequest {
  /** The key; required. */
  readonly keyId: string;
}

/** Answer of RevokeKey. */
export interface RevokeKeyResponse {
  /** The key. */
  readonly key?: ApiKey;
}

/** Request of GetOverview. */
export interface GetOverviewRequest {
}

/**
 * Answer of GetOverview. Sessions and live runs are counted among the 10,000 sessions that
 * changed last, stalled runs and interactions up to 10,000.
 */
export interface GetOverviewResponse {
  /** Sessions that are open. */
  readonly openSessionCount: number;
  /** Sessions that are closed. */
  readonly closedSessionCount: number;
  /** Whether there are more sessions than were counted. */
  readonly moreSessions: boolean;
  /** Live runs that are ACTIVE, stalled ones too. */
  readonly activeRunCount: number;
  /** Live runs that are WAITING. */
  readonly waitingRunCount: number;
  /** Live runs that are PAUSED. */
  readonly pausedRunCount: number;
  /** Runs that are stalled: they wait for RestoreRun. */
  readonly stalledRunCount: number;
  /** Interactions that wait for an answer. */
  readonly openInteractionCount: number;
  /** Activations that wait for an executor; those that back off do not count. */
  readonly queuedActivationCount: number;
  /** How long the oldest of them has waited; unset: there is none. */
  readonly oldestQueuedDurationSeconds?: number;
  /** Activations that executors have. */
  readonly leasedActivationCount: number;
  /** Executors that polled within the last 60 s, or poll now. */
  readonly executorCount: number;
  /** Event streams and watches that are open. */
  readonly streamCount: number;
  /** Bytes of the whole store on disk, its log included. */
  readonly storeSizeBytes: number;
  /** Whether the store takes writes. */
  readonly storeAvailable: boolean;
  /** The time of the server. */
  readonly serverTime?: Date;
  /** What the namespace has of what it has a quota of; empty: of nothing. */
  readonly quotas: readonly QuotaUsage[];
}

/** How much of a quota is used. */
export interface QuotaUsage {
  /** Its name: sessions_max, open_streams_max or stored_bytes_max. Rates are in GetServerInfo. */
  readonly quota: string;
  /** What is used: items, or bytes. Some seconds old where other servers have the store too. */
  readonly used: number;
  /** What may be used. */
  readonly limit: number;
}

/** Request of ListExecutors. */
export interface ListExecutorsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. */
  readonly pageToken: string;
}

/** Answer of ListExecutors. */
export interface ListExecutorsResponse {
  /** The executors. */
  readonly executors: readonly ExecutorStatus[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** What is known of an executor. */
export interface ExecutorStatus {
  /** Its id. */
  readonly executorId: string;
  /**
   * The agents that it polled for last, by name; empty where it has not polled since the
   * server was started.
   */
  readonly agents: readonly string[];
  /** When its last poll ended, or began where it polls now. */
  readonly lastPollTime?: Date;
  /** Whether it polls now. */
  readonly polling: boolean;
  /** Activations that it has. */
  readonly leasedCount: number;
  /** Whether it takes no more activations. */
  readonly draining: boolean;
}

/** Request of StreamFeed. */
export interface StreamFeedRequest {
  /**
   * After what this cursor stands for; empty: at the first event that is kept. A cursor may
   * be kept for ever.
   */
  readonly afterCursor?: string;
  /** With what is committed from now on. The first frame is a bookmark. */
  readonly atEnd?: boolean;
  /**
   * Whether to go on with what comes. Default: true. Else the stream ends once it has come to
   * what was the end when it began.
   */
  readonly follow?: boolean;
  /** Only events of these types; at most 64. The cursor goes on over all others. */
  readonly types: readonly EventType[];
  /**
   * Put the messages into their message.appended events. That of a session which is deleted
   * meanwhile is left out.
   */
  readonly includeMessages: boolean;
}

/** One frame of the stream. */
export interface StreamFeedResponse {
  /** Events in order: at most 256 and 1 MiB, or one. */
  readonly batch?: FeedBatch;
  /** Where the stream is. */
  readonly bookmark?: FeedBookmark;
}

/** Events in the order of the feed. */
export interface FeedBatch {
  /** The events; each names its session. */
  readonly events: readonly FeedEvent[];
}

/** An event and its place in the feed. */
export interface FeedEvent {
  /** The event. */
  readonly event?: Event;
  /** Stands for this event and all before it: keep it with what was made of the event. */
  readonly cursor: string;
}

/**
 * Where the stream is. Sent first where the stream starts at the end, when the reader has
 * caught up, every 15 s while idle, and now and then on the way past what it does not want.
 */
export interface FeedBookmark {
  /** All events up to here were sent, or are of other types; go on from here. */
  readonly cursor: string;
  /** Whether this was the end when the bookmark was made. */
  readonly caughtUp: boolean;
  /** The server's time. */
  readonly serverTime?: Date;
}

/**
 * Request of ImportSession: one of several. The first one may name the session and the
 * request; in later ones both are empty.
 */
export interface ImportSessionRequest {
  /** Id of the new session; empty: the server makes one. */
  readonly sessionId: string;
  /** The next records of the archive; as many as fit a request. */
  readonly records: readonly ArchiveRecord[];
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of ImportSession. */
export interface ImportSessionResponse {
  /** The session. */
  readonly session?: Session;
  /** Messages that were taken over. */
  readonly messageCount: number;
  /** Runs that were taken over. */
  readonly runCount: number;
  /** SHA-256 of what was taken over, in lower-case hex: that of an export of it. */
  readonly contentDigest: string;
  /** Events in the archive, which were left out. */
  readonly skippedEventCount: number;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of PollActivation. */
export interface PollActivationRequest {
  /** Names the process; required. Two processes never share one. */
  readonly executorId: string;
  /** Agents to take activations of: 1 to 64. */
  readonly agents: readonly string[];
  /**
   * How long to wait: 0 (default) to 300 s. The answer comes earlier where the call's
   * deadline is near.
   */
  readonly waitDurationSeconds?: number;
  /** How long the lease lasts without a heartbeat or commit: 5 s to 10 min, default 30 s. */
  readonly leaseDurationSeconds?: number;
  /** Put the context into the answer where it is no larger than this: 0 (default) to 2 MiB. */
  readonly contextBytesMax: number;
  /** Makes the call idempotent; empty = none. An empty answer is not kept. */
  readonly requestId: string;
}

/** Answer of PollActivation. */
export interface PollActivationResponse {
  /** What was leased; unset where nothing was there. */
  readonly activation?: LeasedActivation;
  /** True where the executor is drained. */
  readonly draining: boolean;
  /** True where the lease of a replayed answer has ended since. */
  readonly fenceLost: boolean;
  /** The session's sequence after the lease; unset without an activation. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** An activation that was leased, and what is needed to go on with its run. */
export interface LeasedActivation {
  /** To be sent with every call for it. */
  readonly fence?: Fence;
  /** Why the turn is taken. */
  readonly kind?: ActivationKind;
  /** The run, with options and usage. */
  readonly run?: Run;
  /** A model step that was reserved and not committed; it is granted again. 0: none. */
  readonly reservedStep: number;
  /** The open batch of tool calls, by ordinal. */
  readonly toolCalls: readonly ToolCall[];
  /** Interactions of the run that were answered since its newest model step, oldest first. */
  readonly answeredInteractions: readonly Interaction[];
  /** What the model is to see, where it fits context_bytes_max. */
  readonly context?: ModelContext;
  /** What the server asks of the executor. */
  readonly control?: ActivationControl;
  /**
   * The trace that the work belongs to, as a W3C traceparent: that of the call that gave the run
   * its input, or started it as a child run. Empty: that call was in none.
   */
  readonly traceparent: string;
}

/** What the model is to see. */
export interface ModelContext {
  /**
   * The messages, in order: all, or with a summary those that it does not cover, and before
   * them the run's first input and its latest steer where they are covered.
   */
  readonly messages: readonly Message[];
  /** Stands for the messages that it covers; unset where there is none. */
  readonly summary?: Summary;
}

/** One call that the model asked for, and how far it got. */
export interface ToolCall {
  /** Id of the call in its run. */
  readonly toolCallId: string;
  /** The run. */
  readonly runId: string;
  /** The model step that asked for it. */
  readonly step: number;
  /** Place in its batch, from 1. */
  readonly ordinal: number;
  /** The tool. */
  readonly name: string;
  /** The arguments as JSON; empty where they are malformed. */
  readonly argumentsJson: string;
  /** How far it got. */
  readonly state?: ToolCallState;
  /** Whether it was claimed as one that may be run again. */
  readonly idempotent: boolean;
  /** Its result, once COMMITTED. */
  readonly result?: ToolResult;
  /** When its step was committed. */
  readonly createTime?: Date;
  /** When it reached its end. */
  readonly settleTime?: Date;
  /** The child run that will answer it; empty where there is none. */
  readonly childRunId: string;
}

/** What the server asks of an executor. */
export interface ActivationControl {
  /** Cancellation of the run was requested: stop, and finish. */
  readonly cancelRequested: boolean;
  /** When the run is ended by force; only with cancel_requested. */
  readonly cancelGraceExpireTime?: Date;
  /** A pause was requested: the next boundary, or reservation, takes it. */
  readonly pauseRequested: boolean;
  /** When the lease ends unless it is renewed. */
  readonly leaseExpireTime?: Date;
  /** True where the activation has ended: stop, every further call is STALE_ACTIVATION. */
  readonly ended: boolean;
}

/** Request of DrainExecutor. */
export interface DrainExecutorRequest {
  /** The executor; required. */
  readonly executorId: string;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** Answer of DrainExecutor. */
export interface DrainExecutorResponse {
  /** Activations that the executor still has. */
  readonly leasedCount: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of Heartbeat. */
export interface HeartbeatRequest {
  /** The fence; required. */
  readonly fence?: Fence;
  /** How long the lease lasts from now: 5 s to 10 min, default 30 s. */
  readonly leaseDurationSeconds?: number;
}

/** Answer of Heartbeat. */
export interface HeartbeatResponse {
  /** What the server asks of the executor. */
  readonly control?: ActivationControl;
}

/** Request of WatchActivation. */
export interface WatchActivationRequest {
  /** The fence; required. */
  readonly fence?: Fence;
}

/** One frame of the control. */
export interface WatchActivationResponse {
  /** What the server asks of the executor. */
  readonly control?: ActivationControl;
}

/** Request of Commit. */
export interface CommitRequest {
  /** The fence; required. */
  readonly fence?: Fence;
  /** What happened, in order; at most 64. */
  readonly operations: readonly Operation[];
  /** End the run. */
  readonly finish?: Finish;
  /** Wait for an answer, or for child runs; nobody has the run until then. */
  readonly suspend?: Suspend;
  /** Give the run back to the queue; it is leased again, to anybody. */
  readonly release?: Release;
  /** How long the lease lasts from now: 5 s to 10 min, default 30 s. */
  readonly leaseDurationSeconds?: number;
  /** Makes the call idempotent within the activation; empty = none. */
  readonly requestId: string;
}

/** One thing that happened. */
export interface Operation {
  /** Ask for a model step; last in its list, without an outcome. */
  readonly reserveModelStep?: ReserveModelStep;
  /** The answer to a model step that was granted. */
  readonly commitModelStep?: CommitModelStep;
  /** Tool calls that are about to be run. */
  readonly claimToolCalls?: ClaimToolCalls;
  /** Results of tool calls. */
  readonly commitToolResults?: CommitToolResults;
  /** Answer a tool call with a run of another agent; at most one in a Commit. */
  readonly startChildRun?: StartChildRun;
  /** A summary of the first messages. */
  readonly recordCompaction?: RecordCompaction;
}

/** Ask for a model step before the model is called. */
export interface ReserveModelStep {
}

/**
 * The whole answer of the model. Without tool uses it is a final answer: after
 * it the run ends, or goes on where a steer is delivered in the same
 * transaction. With tool uses it opens a batch of calls.
 */
export interface CommitModelStep {
  /** Blocks of the answer: at most 256, 3 MiB in all; may be empty. */
  readonly content: readonly Block[];
  /** What it used. */
  readonly usage?: Usage;
  /** The model that answered; at most 255 bytes. */
  readonly model: string;
  /** Why the model stopped, in its provider's word; at most 64 bytes. */
  readonly finishReason: string;
}

/** Tool calls that are about to be run: claimed before the effect. */
export interface ClaimToolCalls {
  /** Calls of the open batch, in any order: 1 to 64. */
  readonly toolCallIds: readonly string[];
  /**
   * Whether they may be run again if their results are lost. Where it is false a lost result
   * ends the run OUTCOME_UNKNOWN: they are never run twice.
   */
  readonly idempotent: boolean;
}

/**
 * Results of tool calls: committed after the effect. A result that is not OK is also taken
 * for a call that was not claimed: it is then never run.
 */
export interface CommitToolResults {
  /** One for each call, in any order: 1 to 64; 3 MiB in all. */
  readonly results: readonly ToolResult[];
}

/**
 * Answer a tool call with a run of another agent, in a session of its own. The
 * call stays PREPARED, and cannot be claimed, until the child run ends: then its
 * answer is the call's result. Asked for again it is the same child run. It ends
 * no later than its parent's deadline, and is cancelled when its parent is.
 */
export interface StartChildRun {
  /** A call of the open batch that is PREPARED. */
  readonly toolCallId: string;
  /** Its input, as in Submit. */
  readonly content: readonly Block[];
  /** What it is started with. Default of the agent: the parent's. */
  readonly runOptions?: RunOptions;
  /** Name of its session, for people; at most 255 bytes. */
  readonly displayName: string;
  /** Labels of its session, as in CreateSession. */
  readonly labels: Readonly<Record<string, string>>;
}

/**
 * A summary of the first messages of the session, for the model: it sees it in
 * their place. Only where the next thing is a model step.
 */
export interface RecordCompaction {
  /**
   * Number of the last message that it covers: more than the one before it covered, and no
   * message whose tool calls have results behind it.
   */
  readonly throughMessageNumber: number;
  /** The summary; 1 byte to 256 KiB. */
  readonly summary: string;
  /** What it took. Tokens count apart and against no budget; cost counts as that of a step. */
  readonly usage?: Usage;
  /** The model that wrote it; at most 255 bytes. */
  readonly model: string;
}

/** Wait for an answer, or for child runs. */
export interface Suspend {
  /** A question. */
  readonly prompt?: Prompt;
  /** Child runs. Where enough of them have ended already the run goes on at once. */
  readonly children?: ChildrenWait;
  /**
   * How long a question stays open: up to 30 days. Default: the run's interaction_timeout.
   * Refused with child runs: they have deadlines of their own.
   */
  readonly expireDurationSeconds?: number;
}

/** End the run. */
export interface Finish {
  /** It is done. Where a steer is delivered instead, the run goes on and this is not applied. */
  readonly completed?: Completed;
  /** It failed. */
  readonly failed?: RunFailure;
  /** It was cancelled; only after a request to cancel it. */
  readonly cancelled?: Cancelled;
}

/** The run is done. */
export interface Completed {
  /** JSON as its result; at most 256 KiB; empty means none. */
  readonly outputJson: string;
}

/** The run was cancelled as requested. */
export interface Cancelled {
}

/** Give the run back. */
export interface Release {
  /** For people; at most 1 KiB. */
  readonly reason: string;
}

/** Answer of Commit. */
export interface CommitResponse {
  /** One for each operation, in the same order. */
  readonly results: readonly OperationResult[];
  /** Whether the outcome was applied; false also where none was given. */
  readonly outcomeApplied: boolean;
  /** Where the run stands. */
  readonly position?: RunPosition;
  /**
   * The token that completes an external wait; only in the answer that opened it, and its
   * replays.
   */
  readonly externalToken: string;
  /** Messages appended here that the executor has not written: a steer. */
  readonly delivered: readonly Message[];
  /** The run, without preview and options. */
  readonly run?: Run;
  /** What the server asks of the executor. */
  readonly control?: ActivationControl;
  /** True where the lease of a replayed answer has ended since. */
  readonly fenceLost: boolean;
  /** The session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** What became of an operation. */
export interface OperationResult {
  /** Of reserve_model_step. */
  readonly reserveModelStep?: ReserveModelStepResult;
  /** Of commit_model_step. */
  readonly commitModelStep?: CommitModelStepResult;
  /** Of claim_tool_calls. */
  readonly claimToolCalls?: ClaimToolCallsResult;
  /** Of commit_tool_results. */
  readonly commitToolResults?: CommitToolResultsResult;
  /** Of start_child_run. */
  readonly startChildRun?: StartChildRunResult;
  /** Of record_compaction. */
  readonly recordCompaction?: RecordCompactionResult;
}

/** What became of a reservation. */
export interface ReserveModelStepResult {
  /** What to do. */
  readonly state?: ReserveModelStepResultState;
  /** The step, from 1 in the run; only where granted. */
  readonly step: number;
  /** Names the deltas of the request; only where granted. */
  readonly modelStreamId: string;
}

/** What became of a model step. */
export interface CommitModelStepResult {
  /** Number of its message. */
  readonly messageNumber: number;
  /** The batch that it opened, by ordinal; empty after a final answer. */
  readonly toolCalls: readonly ToolCall[];
}

/** What became of a claim. */
export interface ClaimToolCallsResult {
}

/** What became of results. */
export interface CommitToolResultsResult {
  /** Whether the batch is closed: every call of it has its result message. */
  readonly batchClosed: boolean;
}

/** What became of a child run. */
export interface StartChildRunResult {
  /** The child run. */
  readonly runId: string;
  /** Its session. */
  readonly sessionId: string;
  /** True where the call had it already. */
  readonly existing: boolean;
}

/** What became of a summary. */
export interface RecordCompactionResult {
}

/** Request of StreamModelContext. */
export interface StreamModelContextRequest {
  /** The fence; required. */
  readonly fence?: Fence;
  /**
   * After this number; 0 is the first message. Where a summary covers more than that, the
   * whole context comes, as after 0.
   */
  readonly afterMessageNumber: number;
}

/** One frame of the context. */
export interface StreamModelContextResponse {
  /**
   * Messages in order, as in ModelContext: at most 256, up to 1 MiB unless one alone is
   * larger.
   */
  readonly messages: readonly Message[];
  /**
   * Only in the first frame, and where there is one: what comes is the whole context then,
   * whatever was asked for.
   */
  readonly summary?: Summary;
  /** Only in the last frame. */
  readonly end?: ContextEnd;
}

/** The end of the context. */
export interface ContextEnd {
  /** Number of the last message that the model is to see. */
  readonly messageCount: number;
}

/** One frame of deltas. */
export interface PublishDeltasRequest {
  /** The fence; required in the first frame, which may hold deltas too, and ignored after it. */
  readonly fence?: Fence;
  /** The pieces; at most 256 a frame, 256 KiB of text each. */
  readonly deltas: readonly Delta[];
}

/** Answer of PublishDeltas. */
export interface PublishDeltasResponse {
  /** Pieces that were taken. */
  readonly deltaCount: number;
}

/** Request of ListSessions. */
export interface ListSessionsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** Only sessions with all these labels; at most 8. */
  readonly labels: Readonly<Record<string, string>>;
  /** Only sessions in this state; unset: in any. */
  readonly state?: SessionState;
  /** Only sessions created at this time or later. */
  readonly createTimeFrom?: Date;
  /** Only sessions created before this time. */
  readonly createTimeBefore?: Date;
  /** Only sessions that are neither forks nor of child runs. */
  readonly rootsOnly: boolean;
  /** The order. Default: CREATED_DESC. */
  readonly order?: ListSessionsRequestOrder;
}

/** Answer of ListSessions. */
export interface ListSessionsResponse {
  /** The sessions. */
  readonly sessions: readonly Session[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of ListRuns. */
export interface ListRunsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The session; required. */
  readonly sessionId: string;
  /** Only runs in these phases; empty: in any. */
  readonly phases: readonly RunPhase[];
}

/** Answer of ListRuns. */
export interface ListRunsResponse {
  /** The runs. */
  readonly runs: readonly Run[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of ListChildRuns. */
export interface ListChildRunsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The parent; required. */
  readonly runId: string;
}

/** Answer of ListChildRuns. */
export interface ListChildRunsResponse {
  /** The child runs. */
  readonly runs: readonly Run[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of GetRun. */
export interface GetRunRequest {
  /** The run; required. */
  readonly runId: string;
  /** The session, where the caller wants it checked. */
  readonly sessionId: string;
}

/** Answer of GetRun. */
export interface GetRunResponse {
  /** The run. */
  readonly run?: Run;
}

/** Request of WaitRun. */
export interface WaitRunRequest {
  /** The run; required. */
  readonly runId: string;
  /** The session, where the caller wants it checked. */
  readonly sessionId: string;
  /**
   * How long: 0 (default) to 300 s. The answer comes earlier where the call's deadline is
   * near, with what is true then.
   */
  readonly waitDurationSeconds?: number;
  /** Also return the message that is its answer. */
  readonly includeOutput: boolean;
}

/** Answer of WaitRun. */
export interface WaitRunResponse {
  /** The run; unset while its id is only reserved. */
  readonly run?: Run;
  /** The message that is its answer; only where asked for and there is one. */
  readonly output?: Message;
}

/** Request of ListSubmissions. */
export interface ListSubmissionsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The session; required. */
  readonly sessionId: string;
  /** Only submissions in these states; empty: in any. */
  readonly states: readonly SubmissionState[];
}

/** Answer of ListSubmissions. */
export interface ListSubmissionsResponse {
  /** The submissions; content over 4 KiB is cut, or left out, as `content_truncated` says. */
  readonly submissions: readonly Submission[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of ListEvents. */
export interface ListEventsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** All of this session. */
  readonly sessionId?: string;
  /** Those of this run. */
  readonly runId?: string;
  /** After this sequence of the session; 0 is the first event. */
  readonly afterSequence: number;
  /** Only events of these types; at most 64. */
  readonly types: readonly EventType[];
  /** Put the messages into their message.appended events. */
  readonly includeMessages: boolean;
}

/** Answer of ListEvents. */
export interface ListEventsResponse {
  /** The events, ascending by sequence. */
  readonly events: readonly Event[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of ListMessages. */
export interface ListMessagesRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The session; required. */
  readonly sessionId: string;
  /** Ascending, after this number; 0 is the first message. */
  readonly afterNumber?: number;
  /** Descending, before this number; 0 is the newest message. */
  readonly beforeNumber?: number;
  /** Only messages of these roles; empty: of any. */
  readonly roles: readonly MessageRole[];
}

/** Answer of ListMessages. */
export interface ListMessagesResponse {
  /** The messages. */
  readonly messages: readonly Message[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of StreamMessages. */
export interface StreamMessagesRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** After this number; 0 is the first message. */
  readonly afterNumber: number;
}

/** One frame of the messages. */
export interface StreamMessagesResponse {
  /** Messages in order: at least one, at most 256, up to 1 MiB unless one alone is larger. */
  readonly messages: readonly Message[];
}

/** Request of ListForkPoints. */
export interface ListForkPointsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The session; required. */
  readonly sessionId: string;
}

/** Answer of ListForkPoints. */
export interface ListForkPointsResponse {
  /** The fork points. */
  readonly forkPoints: readonly ForkPoint[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** A terminal top-level run, at whose end a session can be forked. */
export interface ForkPoint {
  /** The run. */
  readonly runId: string;
  /** Its session. */
  readonly sessionId: string;
  /** Its agent. */
  readonly agent: string;
  /** Why it ended. */
  readonly stopReason?: RunStopReason;
  /** Number of messages of the session at its end. */
  readonly messageCount: number;
  /** The first 200 characters of its input. */
  readonly inputPreview: string;
  /** When it was created. */
  readonly createTime?: Date;
  /** When it ended. */
  readonly endTime?: Date;
}

/** Request of GetHistoryAtRun. */
export interface GetHistoryAtRunRequest {
  /** The terminal run; required. */
  readonly runId: string;
  /** The session, where the caller wants it checked. */
  readonly sessionId: string;
}

/** One frame of the history. */
export interface GetHistoryAtRunResponse {
  /**
   * Messages in order, in every frame but the first: at most 256, up to 1 MiB unless one
   * alone is larger.
   */
  readonly messages: readonly Message[];
  /** Only in the first frame. */
  readonly header?: HistoryHeader;
}

/** What the history at a run is. */
export interface HistoryHeader {
  /** The run. */
  readonly run?: Run;
  /** Number of messages that follow. */
  readonly messageCount: number;
  /** Opaque digest: histories with equal digests hold the same messages. */
  readonly digest: string;
  /**
   * The summary that the model saw in place of the first messages when the run ended; unset
   * where there was none. A fork takes it over.
   */
  readonly summary?: Summary;
}

/** Request of ForkSession. */
export interface ForkSessionRequest {
  /** At the end of this terminal run. */
  readonly runId?: string;
  /** Id of the new session; empty: the server makes one. */
  readonly sessionId: string;
  /** Name of the new session; at most 255 bytes. Default: none. */
  readonly displayName: string;
  /** Labels instead of the source's; empty: the source's are taken over. */
  readonly labels: Readonly<Record<string, string>>;
  /** A JSON object instead of the source's; unset: the source's is taken over. */
  readonly metadataJson?: string;
  /** Default agent instead of the source's; unset: the source's is taken over. */
  readonly defaultAgent?: string;
  /** A first input for the new session, in the same transaction. */
  readonly input?: ForkInput;
  /** Makes the call idempotent; empty = none. */
  readonly requestId: string;
}

/** The first input of a fork. */
export interface ForkInput {
  /** Options of its run. */
  readonly runOptions?: RunOptions;
  /** The input, as in SubmitRequest. */
  readonly content: readonly Block[];
  /** Entries of the application, as in SubmitRequest. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** Answer of ForkSession. */
export interface ForkSessionResponse {
  /** The new session. */
  readonly session?: Session;
  /** Number of messages that it took over. */
  readonly messageCount: number;
  /** Digest of those, as in HistoryHeader. */
  readonly digest: string;
  /** The first input, without its content; unset where none was given. */
  readonly submission?: Submission;
  /** The new session's sequence after the call. */
  readonly sequence: number;
  /** True where the answer is that of an earlier call with the same request_id. */
  readonly replayed: boolean;
}

/** Request of GetLineage. */
export interface GetLineageRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The session; required. */
  readonly sessionId: string;
}

/** Answer of GetLineage. */
export interface GetLineageResponse {
  /** Sessions that were forked from it directly, ascending by creation; deleted ones left out. */
  readonly forks: readonly Session[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
  /** From the direct source to the root; at most 100. */
  readonly ancestors: readonly ForkSource[];
  /** Of the session of a child run: from its parent to the top-level run; at most 8. */
  readonly parents: readonly ParentRun[];
}

/** Request of StreamRunEvents. */
export interface StreamRunEventsRequest {
  /** The run; required. */
  readonly runId: string;
  /** The session, where the caller wants it checked. */
  readonly sessionId: string;
  /** After this run_sequence; 0 is the first event. */
  readonly afterRunSequence: number;
  /** Whether to go on with what comes. Default: true. */
  readonly follow?: boolean;
  /** Put the messages into their message.appended events. */
  readonly includeMessages: boolean;
}

/** One frame of the run's events. */
export interface StreamRunEventsResponse {
  /** Events in order: at least one, at most 256 and 1 MiB. */
  readonly events: readonly Event[];
}

/** Request of ListToolCalls. */
export interface ListToolCallsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** The run; required. */
  readonly runId: string;
}

/** Answer of ListToolCalls. */
export interface ListToolCallsResponse {
  /** The calls. */
  readonly toolCalls: readonly ToolCall[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of ListInteractions. */
export interface ListInteractionsRequest {
  /** How many: default 50, above 1,000 cut to it. A page also ends at 2 MiB. */
  readonly pageSize: number;
  /** Where to go on; empty: at the start. Bound to the other arguments. */
  readonly pageToken: string;
  /** Only interactions of this session; empty: of all. */
  readonly sessionId: string;
  /** Only interactions in this state; unset: OPEN. */
  readonly state?: InteractionState;
}

/** Answer of ListInteractions. */
export interface ListInteractionsResponse {
  /** The interactions. */
  readonly interactions: readonly Interaction[];
  /** Where the next page starts; empty: this was the last. */
  readonly nextPageToken: string;
}

/** Request of ExportSession. */
export interface ExportSessionRequest {
  /** The session; required. */
  readonly sessionId: string;
  /** Also give the events of the session. They are of no use to an import. */
  readonly includeEvents: boolean;
}

/** Answer of ExportSession. */
export interface ExportSessionResponse {
  /** The next records. */
  readonly records: readonly ArchiveRecord[];
}

/** Request of GetServerInfo. */
export interface GetServerInfoRequest {
}

/** Answer of GetServerInfo. */
export interface GetServerInfoResponse {
  /** Version of the server. */
  readonly version: string;
  /** Kind of store: `sqlite`, `postgresql` or `memory`. */
  readonly storeKind: string;
  /** How durable an answered write is. */
  readonly durability?: GetServerInfoResponseDurability;
  /** Id of the store, made when it was created. */
  readonly storeId: string;
  /** New at each restore of a backup: cursors of another epoch belong to another history. */
  readonly storeEpoch: number;
  /** Names of what this server can do beyond version 1 of the base contract. */
  readonly features: readonly string[];
  /** Every limit that a client can meet. */
  readonly limits: readonly Limit[];
}

/** A limit. */
export interface Limit {
  /** Its name, such as content_bytes_max. */
  readonly name: string;
  /** Its value. */
  readonly value: number;
  /** What it counts: bytes, seconds, milliseconds, items. */
  readonly unit: string;
}

/** The plain form of each message, by its name. */
export interface Models {
  "runlane.v1.ApiKey": ApiKey;
  "runlane.v1.Interaction": Interaction;
  "runlane.v1.ProxySource": ProxySource;
  "runlane.v1.Prompt": Prompt;
  "runlane.v1.PermissionPrompt": PermissionPrompt;
  "runlane.v1.PermissionCall": PermissionCall;
  "runlane.v1.QuestionPrompt": QuestionPrompt;
  "runlane.v1.FormPrompt": FormPrompt;
  "runlane.v1.ExternalPrompt": ExternalPrompt;
  "runlane.v1.InteractionAnswer": InteractionAnswer;
  "runlane.v1.PermissionAnswer": PermissionAnswer;
  "runlane.v1.Decision": Decision;
  "runlane.v1.QuestionAnswer": QuestionAnswer;
  "runlane.v1.FormAnswer": FormAnswer;
  "runlane.v1.ExternalAnswer": ExternalAnswer;
  "runlane.v1.Message": Message;
  "runlane.v1.Block": Block;
  "runlane.v1.Media": Media;
  "runlane.v1.ToolUse": ToolUse;
  "runlane.v1.ToolResult": ToolResult;
  "runlane.v1.Reasoning": Reasoning;
  "runlane.v1.Data": Data;
  "runlane.v1.Summary": Summary;
  "runlane.v1.Run": Run;
  "runlane.v1.ParentRun": ParentRun;
  "runlane.v1.ChildrenWait": ChildrenWait;
  "runlane.v1.RunOutcome": RunOutcome;
  "runlane.v1.RunFailure": RunFailure;
  "runlane.v1.Cancellation": Cancellation;
  "runlane.v1.Activation": Activation;
  "runlane.v1.RunOptions": RunOptions;
  "runlane.v1.RunLimits": RunLimits;
  "runlane.v1.Usage": Usage;
  "runlane.v1.Fence": Fence;
  "runlane.v1.Submission": Submission;
  "runlane.v1.Session": Session;
  "runlane.v1.ForkSource": ForkSource;
  "runlane.v1.LiveState": LiveState;
  "runlane.v1.Event": Event;
  "runlane.v1.SessionCreated": SessionCreated;
  "runlane.v1.SessionUpdated": SessionUpdated;
  "runlane.v1.SessionClosed": SessionClosed;
  "runlane.v1.SessionReopened": SessionReopened;
  "runlane.v1.SessionForked": SessionForked;
  "runlane.v1.SessionCompacted": SessionCompacted;
  "runlane.v1.SessionImported": SessionImported;
  "runlane.v1.SessionDeleted": SessionDeleted;
  "runlane.v1.SubmissionPending": SubmissionPending;
  "runlane.v1.SubmissionMoved": SubmissionMoved;
  "runlane.v1.SubmissionDelivered": SubmissionDelivered;
  "runlane.v1.SubmissionFailed": SubmissionFailed;
  "runlane.v1.SubmissionWithdrawn": SubmissionWithdrawn;
  "runlane.v1.RunCreated": RunCreated;
  "runlane.v1.RunCancellationRequested": RunCancellationRequested;
  "runlane.v1.RunWaiting": RunWaiting;
  "runlane.v1.RunPauseRequested": RunPauseRequested;
  "runlane.v1.RunPaused": RunPaused;
  "runlane.v1.RunUnpaused": RunUnpaused;
  "runlane.v1.RunRecovering": RunRecovering;
  "runlane.v1.RunStalled": RunStalled;
  "runlane.v1.RunEnding": RunEnding;
  "runlane.v1.RunTerminal": RunTerminal;
  "runlane.v1.ActivationQueued": ActivationQueued;
  "runlane.v1.ActivationLeased": ActivationLeased;
  "runlane.v1.ActivationEnded": ActivationEnded;
  "runlane.v1.ActivationAbandoned": ActivationAbandoned;
  "runlane.v1.MessageAppended": MessageAppended;
  "runlane.v1.ModelStepReserved": ModelStepReserved;
  "runlane.v1.ModelStepCommitted": ModelStepCommitted;
  "runlane.v1.ToolCallPrepared": ToolCallPrepared;
  "runlane.v1.ToolCallClaimed": ToolCallClaimed;
  "runlane.v1.ToolCallCommitted": ToolCallCommitted;
  "runlane.v1.ToolCallOutcomeUnknown": ToolCallOutcomeUnknown;
  "runlane.v1.ToolCallCancelled": ToolCallCancelled;
  "runlane.v1.InteractionOpened": InteractionOpened;
  "runlane.v1.InteractionAnswered": InteractionAnswered;
  "runlane.v1.InteractionClosed": InteractionClosed;
  "runlane.v1.ChildRunStarted": ChildRunStarted;
  "runlane.v1.ChildRunFinished": ChildRunFinished;
  "runlane.v1.Delta": Delta;
  "runlane.v1.Control": Control;
  "runlane.v1.SessionSpec": SessionSpec;
  "runlane.v1.CreateSessionRequest": CreateSessionRequest;
  "runlane.v1.CreateSessionResponse": CreateSessionResponse;
  "runlane.v1.GetSessionRequest": GetSessionRequest;
  "runlane.v1.GetSessionResponse": GetSessionResponse;
  "runlane.v1.UpdateSessionRequest": UpdateSessionRequest;
  "runlane.v1.UpdateSessionResponse": UpdateSessionResponse;
  "runlane.v1.DeleteSessionRequest": DeleteSessionRequest;
  "runlane.v1.DeleteSessionResponse": DeleteSessionResponse;
  "runlane.v1.CloseSessionRequest": CloseSessionRequest;
  "runlane.v1.CloseSessionResponse": CloseSessionResponse;
  "runlane.v1.ReopenSessionRequest": ReopenSessionRequest;
  "runlane.v1.ReopenSessionResponse": ReopenSessionResponse;
  "runlane.v1.SubmitRequest": SubmitRequest;
  "runlane.v1.SubmitResponse": SubmitResponse;
  "runlane.v1.WithdrawSubmissionRequest": WithdrawSubmissionRequest;
  "runlane.v1.WithdrawSubmissionResponse": WithdrawSubmissionResponse;
  "runlane.v1.GetSubmissionRequest": GetSubmissionRequest;
  "runlane.v1.GetSubmissionResponse": GetSubmissionResponse;
  "runlane.v1.InterruptRunRequest": InterruptRunRequest;
  "runlane.v1.InterruptRunResponse": InterruptRunResponse;
  "runlane.v1.GetLiveStateRequest": GetLiveStateRequest;
  "runlane.v1.GetLiveStateResponse": GetLiveStateResponse;
  "runlane.v1.StreamEventsRequest": StreamEventsRequest;
  "runlane.v1.StreamEventsResponse": StreamEventsResponse;
  "runlane.v1.EventBatch": EventBatch;
  "runlane.v1.DeltaBatch": DeltaBatch;
  "runlane.v1.Bookmark": Bookmark;
  "runlane.v1.ListAgentsRequest": ListAgentsRequest;
  "runlane.v1.ListAgentsResponse": ListAgentsResponse;
  "runlane.v1.Agent": Agent;
  "runlane.v1.PauseRunRequest": PauseRunRequest;
  "runlane.v1.PauseRunResponse": PauseRunResponse;
  "runlane.v1.UnpauseRunRequest": UnpauseRunRequest;
  "runlane.v1.UnpauseRunResponse": UnpauseRunResponse;
  "runlane.v1.AnswerInteractionRequest": AnswerInteractionRequest;
  "runlane.v1.AnswerInteractionResponse": AnswerInteractionResponse;
  "runlane.v1.CompleteExternalRequest": CompleteExternalRequest;
  "runlane.v1.CompleteExternalResponse": CompleteExternalResponse;
  "runlane.v1.RestoreRunRequest": RestoreRunRequest;
  "runlane.v1.RestoreRunResponse": RestoreRunResponse;
  "runlane.v1.ArchiveRecord": ArchiveRecord;
  "runlane.v1.ArchiveHeader": ArchiveHeader;
  "runlane.v1.ArchivedRun": ArchivedRun;
  "runlane.v1.ArchiveEnd": ArchiveEnd;
  "runlane.v1.ListStalledRunsRequest": ListStalledRunsRequest;
  "runlane.v1.ListStalledRunsResponse": ListStalledRunsResponse;
  "runlane.v1.SettleRunRequest": SettleRunRequest;
  "runlane.v1.SettleRunResponse": SettleRunResponse;
  "runlane.v1.CreateKeyRequest": CreateKeyRequest;
  "runlane.v1.CreateKeyResponse": CreateKeyResponse;
  "runlane.v1.ListKeysRequest": ListKeysRequest;
  "runlane.v1.ListKeysResponse": ListKeysResponse;
  "runlane.v1.RevokeKeyRequest": RevokeKeyRequest;
  "runlane.v1.RevokeKeyResponse": RevokeKeyResponse;
  "runlane.v1.GetOverviewRequest": GetOverviewRequest;
  "runlane.v1.GetOverviewResponse": GetOverviewResponse;
  "runlane.v1.QuotaUsage": QuotaUsage;
  "runlane.v1.ListExecutorsRequest": ListExecutorsRequest;
  "runlane.v1.ListExecutorsResponse": ListExecutorsResponse;
  "runlane.v1.ExecutorStatus": ExecutorStatus;
  "runlane.v1.StreamFeedRequest": StreamFeedRequest;
  "runlane.v1.StreamFeedResponse": StreamFeedResponse;
  "runlane.v1.FeedBatch": FeedBatch;
  "runlane.v1.FeedEvent": FeedEvent;
  "runlane.v1.FeedBookmark": FeedBookmark;
  "runlane.v1.ImportSessionRequest": ImportSessionRequest;
  "runlane.v1.ImportSessionResponse": ImportSessionResponse;
  "runlane.v1.PollActivationRequest": PollActivationRequest;
  "runlane.v1.PollActivationResponse": PollActivationResponse;
  "runlane.v1.LeasedActivation": LeasedActivation;
  "runlane.v1.ModelContext": ModelContext;
  "runlane.v1.ToolCall": ToolCall;
  "runlane.v1.ActivationControl": ActivationControl;
  "runlane.v1.DrainExecutorRequest": DrainExecutorRequest;
  "runlane.v1.DrainExecutorResponse": DrainExecutorResponse;
  "runlane.v1.HeartbeatRequest": HeartbeatRequest;
  "runlane.v1.HeartbeatResponse": HeartbeatResponse;
  "runlane.v1.WatchActivationRequest": WatchActivationRequest;
  "runlane.v1.WatchActivationResponse": WatchActivationResponse;
  "runlane.v1.CommitRequest": CommitRequest;
  "runlane.v1.Operation": Operation;
  "runlane.v1.ReserveModelStep": ReserveModelStep;
  "runlane.v1.CommitModelStep": CommitModelStep;
  "runlane.v1.ClaimToolCalls": ClaimToolCalls;
  "runlane.v1.CommitToolResults": CommitToolResults;
  "runlane.v1.StartChildRun": StartChildRun;
  "runlane.v1.RecordCompaction": RecordCompaction;
  "runlane.v1.Suspend": Suspend;
  "runlane.v1.Finish": Finish;
  "runlane.v1.Completed": Completed;
  "runlane.v1.Cancelled": Cancelled;
  "runlane.v1.Release": Release;
  "runlane.v1.CommitResponse": CommitResponse;
  "runlane.v1.OperationResult": OperationResult;
  "runlane.v1.ReserveModelStepResult": ReserveModelStepResult;
  "runlane.v1.CommitModelStepResult": CommitModelStepResult;
  "runlane.v1.ClaimToolCallsResult": ClaimToolCallsResult;
  "runlane.v1.CommitToolResultsResult": CommitToolResultsResult;
  "runlane.v1.StartChildRunResult": StartChildRunResult;
  "runlane.v1.RecordCompactionResult": RecordCompactionResult;
  "runlane.v1.StreamModelContextRequest": StreamModelContextRequest;
  "runlane.v1.StreamModelContextResponse": StreamModelContextResponse;
  "runlane.v1.ContextEnd": ContextEnd;
  "runlane.v1.PublishDeltasRequest": PublishDeltasRequest;
  "runlane.v1.PublishDeltasResponse": PublishDeltasResponse;
  "runlane.v1.ListSessionsRequest": ListSessionsRequest;
  "runlane.v1.ListSessionsResponse": ListSessionsResponse;
  "runlane.v1.ListRunsRequest": ListRunsRequest;
  "runlane.v1.ListRunsResponse": ListRunsResponse;
  "runlane.v1.ListChildRunsRequest": ListChildRunsRequest;
  "runlane.v1.ListChildRunsResponse": ListChildRunsResponse;
  "runlane.v1.GetRunRequest": GetRunRequest;
  "runlane.v1.GetRunResponse": GetRunResponse;
  "runlane.v1.WaitRunRequest": WaitRunRequest;
  "runlane.v1.WaitRunResponse": WaitRunResponse;
  "runlane.v1.ListSubmissionsRequest": ListSubmissionsRequest;
  "runlane.v1.ListSubmissionsResponse": ListSubmissionsResponse;
  "runlane.v1.ListEventsRequest": ListEventsRequest;
  "runlane.v1.ListEventsResponse": ListEventsResponse;
  "runlane.v1.ListMessagesRequest": ListMessagesRequest;
  "runlane.v1.ListMessagesResponse": ListMessagesResponse;
  "runlane.v1.StreamMessagesRequest": StreamMessagesRequest;
  "runlane.v1.StreamMessagesResponse": StreamMessagesResponse;
  "runlane.v1.ListForkPointsRequest": ListForkPointsRequest;
  "runlane.v1.ListForkPointsResponse": ListForkPointsResponse;
  "runlane.v1.ForkPoint": ForkPoint;
  "runlane.v1.GetHistoryAtRunRequest": GetHistoryAtRunRequest;
  "runlane.v1.GetHistoryAtRunResponse": GetHistoryAtRunResponse;
  "runlane.v1.HistoryHeader": HistoryHeader;
  "runlane.v1.ForkSessionRequest": ForkSessionRequest;
  "runlane.v1.ForkInput": ForkInput;
  "runlane.v1.ForkSessionResponse": ForkSessionResponse;
  "runlane.v1.GetLineageRequest": GetLineageRequest;
  "runlane.v1.GetLineageResponse": GetLineageResponse;
  "runlane.v1.StreamRunEventsRequest": StreamRunEventsRequest;
  "runlane.v1.StreamRunEventsResponse": StreamRunEventsResponse;
  "runlane.v1.ListToolCallsRequest": ListToolCallsRequest;
  "runlane.v1.ListToolCallsResponse": ListToolCallsResponse;
  "runlane.v1.ListInteractionsRequest": ListInteractionsRequest;
  "runlane.v1.ListInteractionsResponse": ListInteractionsResponse;
  "runlane.v1.ExportSessionRequest": ExportSessionRequest;
  "runlane.v1.ExportSessionResponse": ExportSessionResponse;
  "runlane.v1.GetServerInfoRequest": GetServerInfoRequest;
  "runlane.v1.GetServerInfoResponse": GetServerInfoResponse;
  "runlane.v1.Limit": Limit;
}
