package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/runlane/runlane/clients/go"
	"github.com/runlane/runlane/clients/go/runlanev1"
)

// methods are those of all services, by name.
var methods = func() map[string]protoreflect.MethodDescriptor {
	found := map[string]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		runlanev1.File_runlane_v1_session_service_proto,
		runlanev1.File_runlane_v1_history_service_proto,
		runlanev1.File_runlane_v1_executor_service_proto,
		runlanev1.File_runlane_v1_admin_service_proto,
		runlanev1.File_runlane_v1_server_service_proto,
	} {
		for place := range file.Services().Len() {
			service := file.Services().Get(place)
			for method := range service.Methods().Len() {
				one := service.Methods().Get(method)
				found[string(one.Name())] = one
			}
		}
	}
	return found
}()

// A refused error is a call that was refused, as a scenario sees it.
type refused struct{ told object }

func (r *refused) Error() string { return "refused: " + short(r.told) }

// A binding is one client of its own connections.
type binding struct {
	client *runlane.Client
	// The bare connection, on which a call is sent once.
	raw *grpc.ClientConn
}

func connect(target string) (*binding, error) {
	raw, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	client, err := runlane.New(target, runlane.WithAPIKey(""),
		runlane.WithClientName("conformance"), runlane.WithReconnectTimeout(10*time.Second))
	return &binding{client, raw}, err
}

func (b *binding) close() {
	_ = b.client.Close()
	_ = b.raw.Close()
}

// call makes a call.
func (b *binding) call(ctx context.Context, name string, request any, raw bool) (any, error) {
	method, known := methods[name]
	if !known {
		return nil, fmt.Errorf("there is no method %s", name)
	}
	if method.IsStreamingClient() {
		return b.send(ctx, method, request)
	}
	message, err := readMessage(method.Input(), request)
	if err != nil {
		return nil, err
	}
	if method.IsStreamingServer() {
		return b.merged(ctx, method, message)
	}
	if fork, ok := message.(*runlanev1.ForkSessionRequest); ok && !raw {
		return b.fork(ctx, fork)
	}
	answer := newMessage(method.Output())
	if raw {
		err = runlane.FromStatus(b.raw.Invoke(ctx, path(method), message, answer))
	} else {
		err = b.client.Conn().Invoke(ctx, path(method), message, answer)
	}
	if err != nil {
		return nil, refusal(err)
	}
	return toJSON(answer)
}

// send sends the messages of a call that streams to the server.
func (b *binding) send(
	ctx context.Context, method protoreflect.MethodDescriptor, request any,
) (any, error) {
	stream, err := b.client.Conn().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, path(method))
	if err != nil {
		return nil, refusal(err)
	}
	messages, _ := request.([]any)
	for _, one := range messages {
		message, err := readMessage(method.Input(), one)
		if err != nil {
			return nil, err
		}
		if err := stream.SendMsg(message); err != nil {
			break // the answer tells why
		}
	}
	_ = stream.CloseSend()
	answer := newMessage(method.Output())
	if err := stream.RecvMsg(answer); err != nil {
		return nil, refusal(err)
	}
	return toJSON(answer)
}

// merged reads a stream that ends by itself; its frames are merged into one.
func (b *binding) merged(
	ctx context.Context, method protoreflect.MethodDescriptor, message proto.Message,
) (any, error) {
	history := runlane.NewSessionHistory(b.client)
	switch request := message.(type) {
	case *runlanev1.GetHistoryAtRunRequest:
		if request.SessionId != "" {
			break
		}
		found, err := history.AtRun(ctx, request.RunId)
		if err != nil {
			return nil, refusal(err)
		}
		return toJSON(&runlanev1.GetHistoryAtRunResponse{
			Header: found.Header, Messages: found.Messages,
		})
	case *runlanev1.StreamMessagesRequest:
		answer := &runlanev1.StreamMessagesResponse{}
		for one, err := range history.StreamMessages(ctx, request.SessionId, request.AfterNumber) {
			if err != nil {
				return nil, refusal(err)
			}
			answer.Messages = append(answer.Messages, one)
		}
		return toJSON(answer)
	}
	answer := newMessage(method.Output())
	err := b.frames(ctx, method, message, func(frame proto.Message) bool {
		proto.Merge(answer, frame)
		return true
	})
	if err != nil {
		return nil, err
	}
	return toJSON(answer)
}

// frames reads a stream.
func (b *binding) frames(
	ctx context.Context, method protoreflect.MethodDescriptor, message proto.Message,
	take func(proto.Message) bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := b.client.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path(method))
	if err == nil {
		err = stream.SendMsg(message)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		frame := newMessage(method.Output())
		if err = stream.RecvMsg(frame); err == nil && !take(frame) {
			return nil
		}
	}
	if err == io.EOF {
		return nil
	}
	return refusal(err)
}

// pages reads a list to its end, page by page, and holds the client's own list against that.
func (b *binding) pages(ctx context.Context, name string, request any) (any, error) {
	asked, _ := request.(object)
	size := 50.0
	if given, ok := asked["page_size"]; ok {
		size = number(given)
	}
	merged := object{}
	token := any("")
	for token != nil {
		answer, err := b.call(ctx, name, with(asked, object{"page_token": token}), false)
		if err != nil {
			return nil, err
		}
		page := answer.(object)
		token = page["next_page_token"]
		delete(page, "next_page_token")
		for key, value := range page {
			items, _ := value.([]any)
			if len(items) > int(size) {
				return nil, fmt.Errorf("a page of %d %s", len(items), key)
			}
			before, _ := merged[key].([]any)
			merged[key] = append(before, items...)
		}
	}
	return merged, b.sameByClient(ctx, name, asked, merged)
}

// open reads a stream of items; each is handed to take until that says no.
func (b *binding) open(ctx context.Context, name string, request any, take func(any) bool) error {
	method, known := methods[name]
	if !known {
		return fmt.Errorf("there is no method %s", name)
	}
	message, err := readMessage(method.Input(), request)
	if err != nil {
		return err
	}
	if events, ok := message.(*runlanev1.StreamEventsRequest); ok {
		return b.events(ctx, events, take)
	}
	var failure error
	err = b.frames(ctx, method, message, func(frame proto.Message) bool {
		made, err := toJSON(frame)
		if err != nil {
			failure = err
			return false
		}
		for _, item := range apart(made.(object)) {
			if !take(item) {
				return false
			}
		}
		return true
	})
	return errors.Join(failure, err)
}

func (b *binding) events(
	ctx context.Context, request *runlanev1.StreamEventsRequest, take func(any) bool,
) error {
	stream := b.client.Events(ctx, request.SessionId, func(r *runlanev1.StreamEventsRequest) {
		proto.Reset(r)
		proto.Merge(r, request)
	})
	defer stream.Close()
	for item, err := range stream.All() {
		if err != nil {
			return refusal(err)
		}
		var kind string
		var message proto.Message
		switch {
		case item.Event != nil:
			kind, message = "event", item.Event
		case item.Delta != nil:
			kind, message = "delta", item.Delta
		default:
			kind, message = "control", item.Control
		}
		made, err := toJSON(message)
		if err != nil {
			return err
		}
		if !take(object{kind: made}) {
			return nil
		}
	}
	return nil
}

// apart takes a frame apart: {"events": [a, b]} is {"event": a}, {"event": b}.
func apart(frame object) []any {
	var items []any
	for key, value := range frame {
		list, ok := value.([]any)
		if !ok {
			items = append(items, object{key: value})
			continue
		}
		for _, one := range list {
			items = append(items, object{strings.TrimSuffix(key, "s"): one})
		}
	}
	return items
}

// refusal tells of an error as a scenario sees it; what is no word of a server stays as it is.
func refusal(err error) error {
	var told *runlane.Error
	var lost *runlane.TransportError
	switch {
	case errors.As(err, &told):
		seen := object{
			"code": codeName(told.Code), "reason": string(told.Reason), "message": told.Message,
		}
		if len(told.Metadata) > 0 {
			entries := object{}
			for key, value := range told.Metadata {
				entries[key] = value
			}
			seen["metadata"] = entries
		}
		var fields []any
		for _, one := range told.Violations {
			fields = append(fields, one.Field)
		}
		if fields != nil {
			seen["fields"] = fields
		}
		if told.Retry && told.RetryAfter > 0 {
			seen["retry_after_ms"] = float64(told.RetryAfter.Milliseconds())
		}
		return &refused{seen}
	case errors.As(err, &lost):
		return &refused{object{"code": codeName(lost.Code), "message": lost.Message}}
	}
	return err
}

// codeName writes a code as the contract does.
func codeName(code codes.Code) string {
	for name, one := range codeNames {
		if one == code {
			return name
		}
	}
	return code.String()
}

var codeNames = map[string]codes.Code{
	"CANCELLED": codes.Canceled, "UNKNOWN": codes.Unknown, "INVALID_ARGUMENT": codes.InvalidArgument,
	"DEADLINE_EXCEEDED": codes.DeadlineExceeded, "NOT_FOUND": codes.NotFound,
	"ALREADY_EXISTS": codes.AlreadyExists, "PERMISSION_DENIED": codes.PermissionDenied,
	"RESOURCE_EXHAUSTED": codes.ResourceExhausted, "FAILED_PRECONDITION": codes.FailedPrecondition,
	"ABORTED": codes.Aborted, "OUT_OF_RANGE": codes.OutOfRange, "UNIMPLEMENTED": codes.Unimplemented,
	"INTERNAL": codes.Internal, "UNAVAILABLE": codes.Unavailable, "DATA_LOSS": codes.DataLoss,
	"UNAUTHENTICATED": codes.Unauthenticated,
}

func path(method protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
}

func newMessage(described protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(described.FullName())
	if err != nil {
		panic(err)
	}
	return kind.New().Interface()
}

func readMessage(described protoreflect.MessageDescriptor, value any) (proto.Message, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	message := newMessage(described)
	return message, protojson.Unmarshal(data, message)
}

func toJSON(message proto.Message) (any, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var made any
	return made, json.Unmarshal(data, &made)
}
