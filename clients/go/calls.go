package runlane

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// repeatKey is the key of a context value: a func(error) that is told of each failure that is
// followed by another attempt.
type repeatKey struct{}

// callUnary makes one logical call, in as many attempts as its deadline has room for.
func (c *Client) callUnary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	row := calls.policy(method)
	message, ok := request.(proto.Message)
	if ok && row.Repeat == "request_id" {
		message = named(message)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, row.deadline(message, c.timeout))
		defer cancel()
	}
	ctx = c.withMetadata(ctx)
	tell, _ := ctx.Value(repeatKey{}).(func(error))
	for attempt := 1; ; attempt++ {
		if c.closed.Load() {
			return ErrClientClosed
		}
		err := c.attempt(ctx, row, method, message, reply, conn, invoke, options)
		if err == nil {
			return nil
		}
		if c.closed.Load() && ctx.Err() == nil {
			return ErrClientClosed
		}
		pause := pauseAfter(attempt, err)
		end, _ := ctx.Deadline()
		if ctx.Err() != nil || !row.retryable(err) {
			return err
		}
		// Between two attempts it is the context that ends the call, whatever the last one met.
		if !time.Now().Add(pause).Before(end) {
			return fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
		}
		if tell != nil {
			tell(err)
		}
		if cause := sleep(ctx, pause); cause != nil {
			return fmt.Errorf("%w: %w", err, cause)
		}
	}
}

func (c *Client) attempt(
	ctx context.Context, row methodPolicy, method string, request, reply any,
	conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options []grpc.CallOption,
) error {
	if row.AttemptSeconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, seconds(row.AttemptSeconds))
		defer cancel()
	}
	var trailer metadata.MD
	each := append(options[:len(options):len(options)], grpc.Trailer(&trailer))
	if err := invoke(ctx, method, request, reply, conn, each...); err != nil {
		return readError(ctx, err, trailer)
	}
	return nil
}

// named returns the request with a request id: all attempts carry the same, so that it settles
// whether an earlier one was taken. The caller's own message is left as it is, or it would name
// the next call that is made with it too.
func named(request proto.Message) proto.Message {
	from := request.ProtoReflect()
	field := from.Descriptor().Fields().ByName("request_id")
	if field == nil || from.Get(field).String() != "" {
		return request
	}
	to := from.New()
	from.Range(func(one protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(one, value)
		return true
	})
	to.Set(field, protoreflect.ValueOfString(newID()))
	return to.Interface()
}

func (c *Client) withMetadata(ctx context.Context) context.Context {
	if len(c.metadata) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, c.metadata...)
}

// openStream opens a stream with a deadline, which the server ends it before: it only catches a
// lost connection.
func (c *Client) openStream(
	ctx context.Context, about *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if c.closed.Load() {
		return nil, ErrClientClosed
	}
	limit := calls.policy(method).deadline(nil, c.timeout)
	bounded, cancel := context.WithTimeout(c.withMetadata(ctx), limit)
	stream, err := open(bounded, about, conn, method, options...)
	if err != nil {
		err = readError(bounded, err, nil)
		cancel()
		return nil, err
	}
	return &clientStream{
		ClientStream: stream, client: c, ctx: bounded, cancel: cancel, single: !about.ServerStreams,
	}, nil
}

// A clientStream tells errors as the client does.
type clientStream struct {
	grpc.ClientStream
	client *Client
	ctx    context.Context
	cancel context.CancelFunc
	// One answer comes, and ends it.
	single bool
}

func (s *clientStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil && !s.single {
		return nil
	}
	defer s.cancel()
	if err == nil || err == io.EOF {
		return err
	}
	if s.client.closed.Load() && s.ctx.Err() == nil {
		return ErrClientClosed
	}
	return readError(s.ctx, err, s.Trailer())
}
