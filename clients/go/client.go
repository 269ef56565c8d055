package runlane

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// A Client is a connection to a server; safe to share. The connection is opened at the first
// call. The stubs are those of the contract: their calls have the client's deadlines, repeats
// and errors.
type Client struct {
	// Sessions is the live side: input, control, live state, event streams.
	Sessions runlanev1.SessionServiceClient
	// History is the read side, and forks.
	History runlanev1.HistoryServiceClient
	// Executors is for those who run agents.
	Executors runlanev1.ExecutorServiceClient
	// Admin is for operators.
	Admin runlanev1.AdminServiceClient
	// Server tells what the server is.
	Server runlanev1.ServerServiceClient

	conn      *grpc.ClientConn
	target    string
	metadata  []string
	timeout   time.Duration
	reconnect time.Duration
	closed    atomic.Bool
}

type settings struct {
	apiKey    *string
	namespace string
	name      string
	tls       *tls.Config
	insecure  bool
	timeout   time.Duration
	reconnect time.Duration
	dial      []grpc.DialOption
}

// A ClientOption changes how a [Client] is made.
type ClientOption func(*settings)

// WithAPIKey sets the secret of an API key, or a token of the issuer that the server trusts;
// without it RUNLANE_API_KEY is used, and an empty one is none. It is sent in clear to this
// machine alone, unless [WithInsecure] is given.
func WithAPIKey(key string) ClientOption { return func(s *settings) { s.apiKey = &key } }

// WithNamespace names the namespace, for a key that opens more than one.
func WithNamespace(name string) ClientOption { return func(s *settings) { s.namespace = name } }

// WithClientName names the caller in the actor of events.
func WithClientName(name string) ClientOption { return func(s *settings) { s.name = name } }

// WithTLS secures the connection; see [TLSFiles]. An empty configuration checks the server
// against the authorities of this machine.
func WithTLS(config *tls.Config) ClientOption { return func(s *settings) { s.tls = config } }

// WithInsecure lets an API key go in clear to another machine, where something else secures the
// way.
func WithInsecure() ClientOption { return func(s *settings) { s.insecure = true } }

// WithTimeout sets how long a call may take whose context has no deadline: its repeats included
// and the wait that it asks for not. Default: 30 s.
func WithTimeout(timeout time.Duration) ClientOption {
	return func(s *settings) { s.timeout = timeout }
}

// WithReconnectTimeout sets how long a stream tries for a lost connection. Default: 60 s.
func WithReconnectTimeout(timeout time.Duration) ClientOption {
	return func(s *settings) { s.reconnect = timeout }
}

// WithDialOptions adds options of gRPC, after the client's own.
func WithDialOptions(options ...grpc.DialOption) ClientOption {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// New makes a client of the server at target, such as 127.0.0.1:7480 or
// unix:/run/runlane.sock.
func New(target string, options ...ClientOption) (*Client, error) {
	set := &settings{
		timeout:   seconds(calls.CallSeconds),
		reconnect: seconds(calls.ReconnectSeconds),
	}
	for _, option := range options {
		option(set)
	}
	pairs, err := set.callMetadata(target)
	if err != nil {
		return nil, err
	}
	client := &Client{
		target: target, metadata: pairs, timeout: set.timeout, reconnect: set.reconnect,
	}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(set.transportCredentials()),
		// Repeats are made here alone, where the reasons of the service are known.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		// A dead peer is noticed within 40 s while a call is open.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 2 * time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(client.callUnary),
		grpc.WithChainStreamInterceptor(client.openStream),
	}, set.dial...)
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", target, err)
	}
	client.conn = conn
	client.Sessions = runlanev1.NewSessionServiceClient(conn)
	client.History = runlanev1.NewHistoryServiceClient(conn)
	client.Executors = runlanev1.NewExecutorServiceClient(conn)
	client.Admin = runlanev1.NewAdminServiceClient(conn)
	client.Server = runlanev1.NewServerServiceClient(conn)
	return client, nil
}

// Target returns where the server is.
func (c *Client) Target() string { return c.target }

// Conn returns the connection, for stubs and methods that are not among the above; calls on it
// have the client's deadlines, repeats and errors too.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Close closes the connection; calls that go on end with [ErrClientClosed]. Idempotent.
func (c *Client) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.conn.Close()
}
