package runlane

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// A cuttingProxy passes bytes on, and cuts connections at random: each after so many bytes of
// the server's, or so much time, whatever was on its way. The seed makes a run the same again,
// as far as the machine lets it.
type cuttingProxy struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	random   *rand.Rand
	// How many cuts are still to come.
	left int
	open map[net.Conn]struct{}
}

func newCuttingProxy(t *testing.T, target string, seed uint64, cuts int) *cuttingProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := &cuttingProxy{
		listener: listener, target: target, left: cuts,
		random: rand.New(rand.NewPCG(seed, seed)), open: map[net.Conn]struct{}{},
	}
	go proxy.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		proxy.mu.Lock()
		defer proxy.mu.Unlock()
		for conn := range proxy.open {
			_ = conn.Close()
		}
	})
	return proxy
}

func (p *cuttingProxy) address() string { return p.listener.Addr().String() }

func (p *cuttingProxy) cutsLeft() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}

func (p *cuttingProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.pass(client)
	}
}

func (p *cuttingProxy) pass(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	// Enough for the greeting, and for some of what is asked for: a frame is up to 1 MiB.
	room := int64(400 * math.Pow(2, 12*p.random.Float64()))
	life := time.Duration(5+p.random.IntN(90)) * time.Millisecond
	cutting := p.left > 0
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	if !cutting {
		room = math.MaxInt64
	} else {
		_ = server.SetReadDeadline(time.Now().Add(life))
	}
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, err = io.CopyN(client, server, room)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		p.mu.Lock()
		p.left--
		p.mu.Unlock()
	}
	_ = client.Close()
	_ = server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, client)
	delete(p.open, server)
}
