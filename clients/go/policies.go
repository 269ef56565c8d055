package runlane

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The one table of deadlines and repeats, a copy of proto/calls.json.
//
//go:embed runlanev1/calls.json
var callsJSON []byte

var calls = readCalls(callsJSON)

// A repeatRule tells after which failures a call is made again.
type repeatRule struct {
	// Of failures without a word of the service, and of those that it told.
	TransportCodes []string `json:"transport_codes"`
	ServiceCodes   []string `json:"service_codes"`
	// Where the service said when to try again.
	ReasonsWithDelay []Reason `json:"reasons_with_delay"`
	// Where a stream was open before: the place that it held may not be free yet.
	ReasonsIfConnected []Reason `json:"reasons_if_connected"`
}

// A methodPolicy tells how one method is called.
type methodPolicy struct {
	// read, request_id or same: repeated by the call itself. The streams are opened again by
	// those who read them.
	Repeat string `json:"repeat"`
	// call, wait (wait_duration is added) or stream.
	Deadline string `json:"deadline"`
	// Where it is set, an attempt that ran out of time is repeated too.
	AttemptSeconds float64 `json:"attempt_seconds"`
	SilenceSeconds float64 `json:"silence_seconds"`
}

type callTable struct {
	CallSeconds      float64 `json:"call_seconds"`
	WaitFactor       float64 `json:"wait_factor"`
	StreamSeconds    float64 `json:"stream_seconds"`
	ReconnectSeconds float64 `json:"reconnect_seconds"`
	Backoff          struct {
		FirstSeconds   float64 `json:"first_seconds"`
		LongestSeconds float64 `json:"longest_seconds"`
		Multiplier     float64 `json:"multiplier"`
		JitterFrom     float64 `json:"jitter_from"`
	} `json:"backoff"`
	Again   repeatRule              `json:"again"`
	Reopen  repeatRule              `json:"reopen"`
	Methods map[string]methodPolicy `json:"methods"`
}

func readCalls(data []byte) *callTable {
	table := new(callTable)
	decoder := json.NewDecoder(bytes.NewReader(data))
	// What the table says and this client does not know would be left undone.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(table); err != nil {
		panic("calls.json: " + err.Error())
	}
	return table
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

// policy returns the row of a method by its full name; that of a plain call that is never
// repeated where there is none.
func (t *callTable) policy(method string) methodPolicy {
	if found, ok := t.Methods[strings.TrimPrefix(method, "/")]; ok {
		return found
	}
	return methodPolicy{Repeat: "never", Deadline: "call"}
}

// deadline returns how long a whole call may take. The service answers a wait before the
// deadline, by a tenth of it and at least half a second: hence the factor.
func (p methodPolicy) deadline(request proto.Message, plain time.Duration) time.Duration {
	switch p.Deadline {
	case "stream":
		return seconds(calls.StreamSeconds)
	case "wait":
		waiting, ok := request.(interface{ GetWaitDuration() *durationpb.Duration })
		if ok && waiting.GetWaitDuration() != nil {
			wait := waiting.GetWaitDuration().AsDuration()
			return plain + time.Duration(float64(wait)*calls.WaitFactor)
		}
	}
	return plain
}

// retryable tells whether a unary call that failed so may be repeated.
func (p methodPolicy) retryable(err error) bool {
	switch p.Repeat {
	case "read", "request_id", "same":
	default:
		return false
	}
	var lost *TransportError
	if errors.As(err, &lost) {
		if lost.Retry && lost.RetryAfter < 0 {
			return false
		}
		if lost.Code == codes.DeadlineExceeded {
			return p.AttemptSeconds > 0
		}
	}
	return calls.Again.allows(err, false)
}

// allows tells whether another try after this failure makes sense. connected: a stream was open
// before.
func (r repeatRule) allows(err error, connected bool) bool {
	var lost *TransportError
	if errors.As(err, &lost) {
		return slices.Contains(r.TransportCodes, codeName(lost.Code))
	}
	var told *Error
	if !errors.As(err, &told) {
		return false
	}
	return slices.Contains(r.ServiceCodes, codeName(told.Code)) ||
		told.Retry && slices.Contains(r.ReasonsWithDelay, told.Reason) ||
		connected && slices.Contains(r.ReasonsIfConnected, told.Reason)
}

// pauseAfter returns how long to wait before another attempt, after so many that failed in a row;
// what the last failure says of when to try again is heeded.
func pauseAfter(attempt int, err error) time.Duration {
	rule := calls.Backoff
	grown := rule.FirstSeconds
	for range min(attempt-1, 16) {
		grown = min(grown*rule.Multiplier, rule.LongestSeconds)
	}
	pause := seconds(grown * (rule.JitterFrom + (1-rule.JitterFrom)*rand.Float64()))
	var told *Error
	var lost *TransportError
	switch {
	case errors.As(err, &told) && told.Retry && told.RetryAfter > 0:
		pause += told.RetryAfter
	case errors.As(err, &lost) && lost.Retry && lost.RetryAfter > 0:
		pause += lost.RetryAfter
	}
	return pause
}

// sleep waits; it returns early with the context's error where that ends.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// codeName returns a code as the contract writes it.
func codeName(code codes.Code) string {
	var name strings.Builder
	for place, letter := range code.String() {
		if place > 0 && 'A' <= letter && letter <= 'Z' && code != codes.OK {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	// Go alone writes it with one L.
	return strings.Replace(strings.ToUpper(name.String()), "CANCELED", "CANCELLED", 1)
}
