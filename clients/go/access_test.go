package runlane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// certificates makes an authority and a certificate by it for 127.0.0.1, of both uses; it
// returns the files of the authority, the certificate and its key.
func certificates(t *testing.T) (authority, certificate, key string) {
	t.Helper()
	folder := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(folder, name)
		block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})
		if err := os.WriteFile(path, block, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	rootData := must[[]byte](t)(x509.CreateCertificate(rand.Reader, root, root, &secret.PublicKey, secret))
	leafData := must[[]byte](t)(x509.CreateCertificate(rand.Reader, leaf, root, &secret.PublicKey, secret))
	secretData := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(secret))
	return write("ca.pem", "CERTIFICATE", rootData), write("cert.pem", "CERTIFICATE", leafData),
		write("key.pem", "PRIVATE KEY", secretData)
}

func TestAConnectionIsSecuredBothWays(t *testing.T) {
	authority, certificate, key := certificates(t)
	config := must[*tls.Config](t)(TLSFiles(authority, certificate, key))
	config.ClientCAs, config.ClientAuth = config.RootCAs, tls.RequireAndVerifyClientCert
	listener := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	fake := &fakeService{}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	runlanev1.RegisterSessionServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	submit := func(authority, certificate, key string) error {
		config := must[*tls.Config](t)(TLSFiles(authority, certificate, key))
		client := dial(t, listener.Addr().String(), WithTLS(config), WithAPIKey("secret"),
			WithTimeout(300*time.Millisecond))
		_, err := client.Sessions.Submit(t.Context(), &runlanev1.SubmitRequest{SessionId: "s"})
		return err
	}
	if err := submit(authority, certificate, key); err != nil {
		t.Fatal(err)
	}
	if got := fake.metadata.Get("authorization"); len(got) != 1 || got[0] != "Bearer secret" {
		t.Fatalf("authorization %q", got)
	}
	if submit(authority, "", "") == nil || submit("", certificate, key) == nil {
		t.Fatal("one side was not checked")
	}
	for _, files := range [][3]string{{key, "", ""}, {"", certificate, ""}, {"missing", "", ""}} {
		if _, err := TLSFiles(files[0], files[1], files[2]); err == nil {
			t.Errorf("%q was taken", files)
		}
	}
}

func TestAConnectionGoesOverASocketOfTheMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener := must[net.Listener](t)(net.Listen("unix", path))
	fake := &fakeService{}
	server := grpc.NewServer()
	runlanev1.RegisterSessionServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client := dial(t, "unix:"+path, WithAPIKey("secret"))
	_, err := client.Sessions.Submit(within(t), &runlanev1.SubmitRequest{SessionId: "s"})
	if err != nil || fake.metadata.Get("authorization")[0] != "Bearer secret" {
		t.Fatalf("%v %v", err, fake.metadata)
	}
}
