package sinks

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Security configures TLS: the trusted authorities and the client certificate. The files are read for each connection,
// so new files need no restart.
type Security struct {
	CA         string // PEM file of authorities; empty means the system's
	Cert, Key  string // PEM files of a client certificate; may be empty
	ServerName string // expected in the server's certificate; empty means the host
}

func (s Security) config(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if s.ServerName != "" {
		c.ServerName = s.ServerName
	}
	if s.CA != "" {
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s does not contain a PEM certificate", s.CA)
		}
	}
	if s.Cert != "" {
		pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Check reads the files and returns the first error.
func (s Security) Check() error {
	_, err := s.config("")
	return err
}
