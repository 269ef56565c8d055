// Package liveserver runs programs of this checkout, such as `runlane serve`, for tests.
package liveserver

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// A Server is a process that says where it listens.
type Server struct {
	// Address is where it listens.
	Address string

	folder, settings string
	command          *exec.Cmd
}

// Root returns the checkout that this file is in.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../../..")
}

// Need skips a test where the checkout has no server; with RUNLANE_SERVER_REQUIRED set it fails.
func Need(t testing.TB) {
	t.Helper()
	_, err := os.Stat(program("runlane"))
	if err == nil {
		return
	}
	if os.Getenv("RUNLANE_SERVER_REQUIRED") != "" {
		t.Fatalf("no server to test with: %v", err)
	}
	t.Skipf("no server to test with: %v", err)
}

func program(name string) string { return filepath.Join(Root(), ".venv/bin", name) }

// Start starts `runlane serve` with a store and settings in a folder.
func Start(folder, settings string) (*Server, error) {
	server := &Server{Address: "127.0.0.1:0", folder: folder, settings: "runlane.toml"}
	err := os.WriteFile(filepath.Join(folder, server.settings), []byte(settings), 0o600)
	if err != nil {
		return nil, err
	}
	return server, server.start()
}

func (s *Server) start() error {
	return s.run(exec.Command(program("runlane"), "serve", "--config", s.settings,
		"--listen", s.Address, "--store", "sqlite:runlane.db"))
}

// Restart kills the server, and starts it again on its store and address.
func (s *Server) Restart() error {
	s.Kill()
	return s.start()
}

// Proxy starts the kit's proxy that makes a server wrong, in a folder for its log.
func Proxy(folder, target, fault string) (*Server, error) {
	server := &Server{folder: folder}
	command := exec.Command(program("python"), "-m", "conformance.faulty",
		"--target", target, "--fault", fault)
	command.Env = append(command.Env, "PYTHONPATH="+Root())
	return server, server.run(command)
}

// run starts a program, and reads from its first line where it listens.
func (s *Server) run(command *exec.Cmd) error {
	command.Dir = s.folder
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "RUNLANE_") && !strings.HasPrefix(pair, "PYTHONPATH=") {
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
	address, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !found {
		s.Kill()
		told, _ := os.ReadFile(log.Name())
		return errors.Join(err, fmt.Errorf("it did not start: %q\n%s", line, told))
	}
	s.Address = address
	return nil
}

// Kill ends it as a crash would; idempotent.
func (s *Server) Kill() {
	if s != nil && s.command != nil && s.command.ProcessState == nil {
		_ = s.command.Process.Signal(syscall.SIGKILL)
		_ = s.command.Wait()
	}
}
