package runlane

// A Reason says why the service refused a call or failed; it is part of the contract. It is an
// error itself, so that errors.Is tells an [*Error] by it. A reason that this client does not
// know is one too.
type Reason string

// Error returns the reason as the contract writes it, such as SESSION_BUSY.
func (r Reason) Error() string { return string(r) }

// The reasons of the contract.
const (
	// FieldInvalid: a field breaks its rule. BadRequest names each such field.
	FieldInvalid Reason = "FIELD_INVALID"
	// InputEmpty: the input is empty, or white space alone.
	InputEmpty Reason = "INPUT_EMPTY"
	// OptionsNotAllowed: STEER takes no run_options.
	OptionsNotAllowed Reason = "OPTIONS_NOT_ALLOWED"
	// PageTokenInvalid: the page token is not one of this server's.
	PageTokenInvalid Reason = "PAGE_TOKEN_INVALID"
	// PageTokenMismatch: the page token belongs to other arguments.
	PageTokenMismatch Reason = "PAGE_TOKEN_MISMATCH"
	// OperationInvalid: an operation of a Commit does not fit the run. Metadata:
	// operation_index (from 0; absent where it is the outcome), detail, tool_call_id (where it
	// is about a call).
	OperationInvalid Reason = "OPERATION_INVALID"
	// AnswerInvalid: the answer does not fit its question.
	AnswerInvalid Reason = "ANSWER_INVALID"
	// SessionNotFound: no such session in the namespace, or deleted.
	SessionNotFound Reason = "SESSION_NOT_FOUND"
	// RunNotFound: no such run in the namespace; also of a reserved run id.
	RunNotFound Reason = "RUN_NOT_FOUND"
	// SubmissionNotFound: no such submission in the namespace.
	SubmissionNotFound Reason = "SUBMISSION_NOT_FOUND"
	// InteractionNotFound: no such interaction of the run, or no such token.
	InteractionNotFound Reason = "INTERACTION_NOT_FOUND"
	// ToolCallNotFound: no such call in the open batch. Metadata: tool_call_id,
	// operation_index.
	ToolCallNotFound Reason = "TOOL_CALL_NOT_FOUND"
	// AgentNotFound: the setting `agents` lists the allowed names, and this is not one.
	// Metadata: agent.
	AgentNotFound Reason = "AGENT_NOT_FOUND"
	// KeyNotFound: no such API key in the namespaces that the credential opens.
	KeyNotFound Reason = "KEY_NOT_FOUND"
	// SessionExists: the session id is taken. Metadata: session_id, deleted (true where it was
	// used by a session since deleted).
	SessionExists Reason = "SESSION_EXISTS"
	// RequestIDReused: the request_id was used with another request. Metadata: request_id.
	RequestIDReused Reason = "REQUEST_ID_REUSED"
	// SessionBusy: a run is live. Metadata: run_id, phase, activation_id, allowed_commands.
	SessionBusy Reason = "SESSION_BUSY"
	// SessionIdle: no run is live. Metadata: allowed_commands.
	SessionIdle Reason = "SESSION_IDLE"
	// SessionClosed: the session takes no input.
	SessionClosed Reason = "SESSION_CLOSED"
	// SessionLive: a run is live; delete with force, or interrupt it first. Metadata: run_id.
	SessionLive Reason = "SESSION_LIVE"
	// ChildSession: the session is that of a child run: it takes steers and answers, and lives
	// and ends with its parent's. Metadata: parent_run_id.
	ChildSession Reason = "CHILD_SESSION"
	// RunNotCurrent: target_run_id is not the live run. Metadata: run_id (the live one, absent
	// where there is none).
	RunNotCurrent Reason = "RUN_NOT_CURRENT"
	// RunNotTerminal: the run has not ended. Metadata: run_id, phase.
	RunNotTerminal Reason = "RUN_NOT_TERMINAL"
	// RunNotTopLevel: the run is a child run, which is no fork point. Metadata: run_id.
	RunNotTopLevel Reason = "RUN_NOT_TOP_LEVEL"
	// RunTerminal: the run has ended. Metadata: run_id.
	RunTerminal Reason = "RUN_TERMINAL"
	// RunCancelling: cancellation of the run was requested, or it is ending. Metadata: run_id,
	// cause (what it will end with; only of a run that is ending).
	RunCancelling Reason = "RUN_CANCELLING"
	// InteractionClosed: the interaction ended without an answer. Metadata: interaction_id.
	InteractionClosed Reason = "INTERACTION_CLOSED"
	// InteractionConflict: the interaction has another answer, or another version. Metadata:
	// interaction_id, version.
	InteractionConflict Reason = "INTERACTION_CONFLICT"
	// SubmissionSettled: the submission has had its end. Metadata: submission_id, state.
	SubmissionSettled Reason = "SUBMISSION_SETTLED"
	// CallUnresolved: a claimed call has no result. Metadata: tool_call_id.
	CallUnresolved Reason = "CALL_UNRESOLVED"
	// CallHasChild: a child run will answer the call. Metadata: tool_call_id, run_id (of the
	// child run), operation_index.
	CallHasChild Reason = "CALL_HAS_CHILD"
	// StaleActivation: the fence is not, or no longer, the right one. Metadata: run_id.
	StaleActivation Reason = "STALE_ACTIVATION"
	// RevisionMismatch: expected_revision is not the session's. Metadata: revision.
	RevisionMismatch Reason = "REVISION_MISMATCH"
	// EtagMismatch: the record was changed since. Metadata: etag.
	EtagMismatch Reason = "ETAG_MISMATCH"
	// ActivationMismatch: expected_activation_id is not the current one. Metadata:
	// activation_id.
	ActivationMismatch Reason = "ACTIVATION_MISMATCH"
	// QueueFull: a limit of pending input is reached. Metadata: limit, queue.
	QueueFull Reason = "QUEUE_FULL"
	// QuotaExceeded: the namespace has as much as it may have, or makes more calls or events a
	// second than it may: then RetryInfo says when to try again. Metadata: limit, quota.
	QuotaExceeded Reason = "QUOTA_EXCEEDED"
	// StreamLimit: the server has as many streams as it takes, or the namespace as many as it
	// may have. Metadata: limit, quota (absent where it is the server's limit).
	StreamLimit Reason = "STREAM_LIMIT"
	// MessageTooLarge: content is over the limit. Metadata: size_bytes, limit_bytes.
	MessageTooLarge Reason = "MESSAGE_TOO_LARGE"
	// SequenceAhead: the cursor is beyond the session's last event. Metadata: sequence.
	SequenceAhead Reason = "SEQUENCE_AHEAD"
	// CredentialMissing: the call has no credential, and needs one.
	CredentialMissing Reason = "CREDENTIAL_MISSING"
	// CredentialInvalid: the credential is none of this server's, was revoked, or has expired.
	CredentialInvalid Reason = "CREDENTIAL_INVALID"
	// ScopeMissing: the credential does not allow the call, or does not open the namespace.
	// Metadata: scope (that the call needs), namespace (only where it is about that).
	ScopeMissing Reason = "SCOPE_MISSING"
	// Draining: the server is stopping; RetryInfo says when to try again.
	Draining Reason = "DRAINING"
	// StreamEnded: the stream was ended by the server; go on from the last sequence.
	StreamEnded Reason = "STREAM_ENDED"
	// StoreUnavailable: the store did not take or give the data. Whether a write was made is
	// settled by its request_id.
	StoreUnavailable Reason = "STORE_UNAVAILABLE"
	// StoreCorrupt: what the store holds fails its checks. Metadata: incident_id.
	StoreCorrupt Reason = "STORE_CORRUPT"
	// InternalError: a fault of the server. Metadata: incident_id, to find it in the log.
	InternalError Reason = "INTERNAL_ERROR"
)
