package runlane

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
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

// A serverProcess is `runlane serve` with a store of its own.
type serverProcess struct {
	folder, address string
	command         *exec.Cmd
}

var (
	sharedServer     *serverProcess
	sharedServerOnce sync.Once
	sharedServerErr  error
	counter          atomic.Int64
)

func TestMain(m *testing.M) {
	if scene := os.Getenv("RUNLANE_TEST_SCENE"); scene != "" {
		os.Exit(playScene(scene))
	}
	code := m.Run()
	if sharedServer != nil {
		sharedServer.kill()
		_ = os.RemoveAll(sharedServer.folder)
	}
	os.Exit(code)
}

// runlaneCommand finds the server of this checkout; RUNLANE_SERVER names another.
func runlaneCommand() (string, error) {
	if named := os.Getenv("RUNLANE_SERVER"); named != "" {
		return named, nil
	}
	path, err := filepath.Abs("../../.venv/bin/runlane")
	if err != nil {
		return "", err
	}
	_, err = os.Stat(path)
	return path, err
}

func startServer(folder, address string) (*serverProcess, error) {
	path, err := runlaneCommand()
	if err != nil {
		return nil, err
	}
	settings := filepath.Join(folder, "runlane.toml")
	if err := os.WriteFile(settings, []byte(serverSettings), 0o600); err != nil {
		return nil, err
	}
	server := &serverProcess{folder: folder}
	return server, server.start(path, settings, address)
}

func (s *serverProcess) start(path, settings, address string) error {
	command := exec.Command(path, "serve", "--config", settings, "--listen", address,
		"--store", "sqlite:"+filepath.Join(s.folder, "runlane.db"))
	command.Dir = s.folder
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "RUNLANE_") {
			command.Env = append(command.Env, pair)
		}
	}
	command.Env = append(command.Env, "PYTHONUNBUFFERED=1")
	log, err := os.OpenFile(
		filepath.Join(s.folder, "server.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stderr = log
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	s.command = command
	line, err := bufio.NewReader(stdout).ReadString('\n')
	where, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		s.kill()
		told, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the server did not start: %q %v\n%s", line, err, told)
	}
	s.address = where
	return nil
}

func (s *serverProcess) restart() error {
	s.kill()
	path, err := runlaneCommand()
	if err != nil {
		return err
	}
	return s.start(path, filepath.Join(s.folder, "runlane.toml"), s.address)
}

func (s *serverProcess) kill() {
	if s.command != nil && s.command.ProcessState == nil {
		_ = s.command.Process.Signal(syscall.SIGKILL)
		_ = s.command.Wait()
	}
}

// ownServer starts a server that the test may kill.
func ownServer(t *testing.T) *serverProcess {
	t.Helper()
	needServer(t)
	server, err := startServer(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.kill)
	return server
}

func needServer(t *testing.T) {
	t.Helper()
	if _, err := runlaneCommand(); err != nil {
		if os.Getenv("RUNLANE_SERVER_REQUIRED") != "" {
			t.Fatalf("no server to test with: %v", err)
		}
		t.Skipf("no server to test with: %v", err)
	}
}

// liveAddress returns where a server is that all tests share.
func liveAddress(t *testing.T) string {
	t.Helper()
	needServer(t)
	sharedServerOnce.Do(func() {
		folder, err := os.MkdirTemp("", "runlane-go-")
		if err == nil {
			sharedServer, err = startServer(folder, "127.0.0.1:0")
		}
		sharedServerErr = err
	})
	if sharedServerErr != nil {
		t.Fatal(sharedServerErr)
	}
	return sharedServer.address
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
