package runlane

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// keyVariable holds the API key where no option gives one.
const keyVariable = "RUNLANE_API_KEY"

// TLSFiles reads a configuration for [WithTLS] from PEM files.
//
// authorities is what the server's certificate is checked against; empty: those of this machine.
// certificate and key are the client's own, where the server asks for one; both or neither.
func TLSFiles(authorities, certificate, key string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if authorities != "" {
		data, err := os.ReadFile(authorities)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s holds no certificate", authorities)
		}
	}
	if (certificate == "") != (key == "") {
		return nil, errors.New("certificate and key go together")
	}
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// transportCredentials returns how the connection is secured.
func (s *settings) transportCredentials() credentials.TransportCredentials {
	if s.tls == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(s.tls)
}

// callMetadata returns what every call carries, as keys and values in turn.
func (s *settings) callMetadata(target string) ([]string, error) {
	var pairs []string
	key, where := os.Getenv(keyVariable), keyVariable
	if s.apiKey != nil {
		key, where = *s.apiKey, "the API key"
	}
	if key != "" {
		if strings.ContainsFunc(key, func(letter rune) bool { return letter < '!' || letter > '~' }) {
			return nil, fmt.Errorf("%s has characters that no key has, such as a line feed", where)
		}
		if s.tls == nil && !s.insecure && !isHere(target) {
			return nil, fmt.Errorf("%s may be another machine, and the API key could be read on "+
				"the way: say how to secure the connection with WithTLS, or WithInsecure where "+
				"something else does", target)
		}
		pairs = append(pairs, "authorization", "Bearer "+key)
	}
	if s.namespace != "" {
		pairs = append(pairs, "runlane-namespace", s.namespace)
	}
	if s.name != "" {
		pairs = append(pairs, "runlane-client", s.name)
	}
	return pairs, nil
}

// isHere tells whether an address is one of this machine.
func isHere(target string) bool {
	if strings.HasPrefix(target, "unix:") {
		return true
	}
	address := target[strings.LastIndex(target, "/")+1:]
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
