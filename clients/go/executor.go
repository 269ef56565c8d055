package runlane

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	// Contexts up to this size come with the lease; larger ones are streamed.
	contextBytes = 1 << 20
	// How long a poll may still take once the server was told to give nothing more.
	lastPoll = 5 * time.Second
	// Polls in a row that reach nobody, before that is told: the first may meet the end of a
	// connection.
	missedPolls = 2
)

// Failures that a later poll may not meet: the server, the store or the network.
var passingCodes = []codes.Code{
	codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown, codes.Canceled,
	codes.Aborted, codes.ResourceExhausted, codes.DataLoss,
}

// An Executor runs agents: it leases activations, asks models and commits what they answer.
//
// A restart of the server is survived, and leases go on over it. A tool that is not idempotent
// never runs twice for one call. An error of a model ends its run and nothing else. An executor
// runs once.
type Executor struct {
	client      *Client
	id          string
	agents      map[string]*toolbox
	names       []string
	lease, wait time.Duration
	log         *slog.Logger

	slots     chan struct{}
	work      sync.WaitGroup
	started   atomic.Bool
	finished  chan struct{}
	drainOnce sync.Once
	draining  chan struct{}
	stopPolls context.CancelFunc
	polls     context.Context
	missed    int
}

// An ExecutorOption changes how an [Executor] is made.
type ExecutorOption func(*Executor)

// WithExecutorID names this process. Two executors never share an id, and one that was drained
// is not used again. Default: host, process id and something random.
func WithExecutorID(id string) ExecutorOption { return func(e *Executor) { e.id = id } }

// WithConcurrency sets how many activations it has at a time. Default: 8.
func WithConcurrency(count int) ExecutorOption {
	return func(e *Executor) { e.slots = make(chan struct{}, max(count, 1)) }
}

// WithLease sets how long a lease lasts without a sign of life: 5 s to 10 min. Default: 30 s.
func WithLease(duration time.Duration) ExecutorOption {
	return func(e *Executor) { e.lease = duration }
}

// WithPollWait sets how long a poll waits for work: 0 to 300 s. Default: 20 s.
func WithPollWait(duration time.Duration) ExecutorOption {
	return func(e *Executor) { e.wait = duration }
}

// WithLogger sets where it tells what happens. Default: slog.Default(). No text of users is in
// it.
func WithLogger(logger *slog.Logger) ExecutorOption { return func(e *Executor) { e.log = logger } }

// NewExecutor makes an executor; [Executor.Run] runs it.
func NewExecutor(
	client *Client, agents []Agent, options ...ExecutorOption,
) (*Executor, error) {
	executor := &Executor{
		client: client, id: defaultExecutorID(), agents: map[string]*toolbox{},
		lease: 30 * time.Second, wait: 20 * time.Second, log: slog.Default(),
		slots: make(chan struct{}, 8), draining: make(chan struct{}),
		finished: make(chan struct{}),
	}
	executor.polls, executor.stopPolls = context.WithCancel(context.Background())
	for _, option := range options {
		option(executor)
	}
	for _, agent := range agents {
		if _, taken := executor.agents[agent.Name]; taken {
			return nil, fmt.Errorf("two agents are named %q", agent.Name)
		}
		box, err := newToolbox(agent)
		if err != nil {
			return nil, err
		}
		executor.agents[agent.Name] = box
		executor.names = append(executor.names, agent.Name)
	}
	if len(executor.names) == 0 {
		return nil, errors.New("an executor needs an agent")
	}
	slices.Sort(executor.names)
	return executor, nil
}

// ID returns what the server knows this executor as.
func (e *Executor) ID() string { return e.id }

// Run polls and works until it is drained; then it returns nil. Where the polls are refused for
// good, what runs is finished before it returns the refusal. Where the context ends, what runs
// is given back, for others to take at once, and the context's error is returned.
func (e *Executor) Run(ctx context.Context) error {
	if e.started.Swap(true) {
		return errors.New("the executor runs already, or has run; make another one")
	}
	defer close(e.finished)
	defer e.stopPolls()
	end := context.AfterFunc(ctx, e.stopPolls)
	defer end()
	err := e.pollAll(ctx)
	e.work.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Drain takes no more activations, and returns when those that it has are done, or the context
// ends. A server that cannot be told is a warning in the log: nothing more is taken all the
// same.
func (e *Executor) Drain(ctx context.Context) error {
	e.drainOnce.Do(func() { close(e.draining) })
	if !e.started.Swap(true) {
		// It never ran, and never will.
		close(e.finished)
		return nil
	}
	tell, cancel := context.WithTimeout(ctx, lastPoll)
	defer cancel()
	_, err := e.client.Executors.DrainExecutor(tell, &runlanev1.DrainExecutorRequest{
		ExecutorId: e.id,
	})
	if err != nil {
		e.log.Warn("the server was not told of the drain, which goes on", "error", err)
	}
	// It leases nothing once its client has gone.
	last := time.AfterFunc(lastPoll, e.stopPolls)
	defer last.Stop()
	select {
	case <-e.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Executor) isDraining() bool {
	select {
	case <-e.draining:
		return true
	default:
		return false
	}
}

func (e *Executor) pollAll(ctx context.Context) error {
	for {
		select {
		case <-e.draining:
			return nil
		case <-e.polls.Done():
			return nil
		case e.slots <- struct{}{}:
		}
		if e.isDraining() {
			return nil
		}
		leased, err := e.poll()
		if err != nil {
			return err
		}
		if leased == nil {
			<-e.slots
			continue
		}
		e.work.Add(1)
		go func() {
			defer e.work.Done()
			defer func() { <-e.slots }()
			runActivation(ctx, e, leased)
		}()
	}
}

// poll asks until there is an answer: the same request id gives the same lease.
func (e *Executor) poll() (*runlanev1.LeasedActivation, error) {
	request := &runlanev1.PollActivationRequest{
		ExecutorId: e.id, Agents: e.names, WaitDuration: durationpb.New(e.wait),
		LeaseDuration: durationpb.New(e.lease), ContextBytesMax: contextBytes,
		RequestId: newID(),
	}
	ctx := context.WithValue(e.polls, repeatKey{}, e.unreached)
	for failures := 1; ; failures++ {
		answer, err := e.client.Executors.PollActivation(ctx, request)
		if err == nil {
			e.reached()
			if answer.Draining {
				e.drainOnce.Do(func() { close(e.draining) })
			}
			if answer.FenceLost {
				return nil, nil
			}
			return answer.Activation, nil
		}
		if e.polls.Err() != nil {
			return nil, nil
		}
		if errors.Is(err, ErrClientClosed) || !slices.Contains(passingCodes, status.Code(err)) {
			return nil, err
		}
		e.unreached(err)
		select {
		case <-e.draining:
			return nil, nil
		case <-e.polls.Done():
			return nil, nil
		case <-time.After(pauseAfter(failures, err)):
		}
	}
}

// unreached says that the server is away, once, and not of a connection that was cut alone.
func (e *Executor) unreached(err error) {
	e.missed++
	if e.missed == missedPolls {
		e.log.Warn("cannot poll, and goes on trying", "target", e.client.target, "error", err)
	}
}

func (e *Executor) reached() {
	if e.missed >= missedPolls {
		e.log.Info("the server answers again", "target", e.client.target)
	}
	e.missed = 0
}

var noIDCharacter = regexp.MustCompile(`[^A-Za-z0-9._-]`)

func defaultExecutorID() string {
	host, _ := os.Hostname()
	host = noIDCharacter.ReplaceAllString(host, "-")
	host = strings.TrimLeft(host[:min(len(host), 64)], "._-")
	if host == "" {
		host = "host"
	}
	var random [6]byte
	_, _ = rand.Read(random[:])
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), hex.EncodeToString(random[:]))
}
