package runlane

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runlane/runlane/clients/go/internal/liveserver"
)

// What the tests of a real server run beside the agents of their own.
const serverSettings = `
[[agent]]
name = "echo"
model = { kind = "scripted", script = [{ answer = "You said: {input}" }], piece_characters = 4 }

[[agent]]
name = "asker"
ask_question = true
[agent.model]
kind = "scripted"
script = [{ match = "", answer = { tool = "ask_question", arguments = { question = "Which?" } }, then = "So: {result}" }]
`

var (
	sharedServer     *liveserver.Server
	sharedFolder     string
	sharedServerOnce sync.Once
	sharedServerErr  error
	counter          atomic.Int64
)

func TestMain(m *testing.M) {
	if scene := os.Getenv("RUNLANE_TEST_SCENE"); scene != "" {
		os.Exit(playScene(scene))
	}
	code := m.Run()
	sharedServer.Kill()
	_ = os.RemoveAll(sharedFolder)
	os.Exit(code)
}

// ownServer starts a server that the test may kill.
func ownServer(t *testing.T) *liveserver.Server {
	t.Helper()
	liveserver.Need(t)
	server, err := liveserver.Start(t.TempDir(), serverSettings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	return server
}

// liveAddress returns where a server is that all tests share.
func liveAddress(t *testing.T) string {
	t.Helper()
	liveserver.Need(t)
	sharedServerOnce.Do(func() {
		if sharedFolder, sharedServerErr = os.MkdirTemp("", "runlane-go-"); sharedServerErr == nil {
			sharedServer, sharedServerErr = liveserver.Start(sharedFolder, serverSettings)
		}
	})
	if sharedServerErr != nil {
		t.Fatal(sharedServerErr)
	}
	return sharedServer.Address
}

func dial(t *testing.T, address string, options ...ClientOption) *Client {
	t.Helper()
	client, err := New(address, append([]ClientOption{WithAPIKey("")}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// within bounds a test that waits.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func unique(prefix string) string {
	return fmt.Sprintf("%s-%d-%d", prefix, time.Now().UnixMicro(), counter.Add(1))
}

// work runs an executor of one agent until the test ends.
func work(t *testing.T, client *Client, agent Agent, options ...ExecutorOption) *Executor {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil))
	executor, err := NewExecutor(client, []Agent{agent}, append([]ExecutorOption{
		WithLogger(quiet), WithPollWait(5 * time.Second)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = executor.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return executor
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
