package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// Certificates are the files that a TLS server shows and trusts. They can be loaded again while it serves.
type Certificates struct {
	mu                  sync.Mutex // guards the names
	cert, key, clientCA string
	current             atomic.Pointer[tls.Config]
}

// LoadCertificates loads a certificate chain and its key, PEM, and the CAs that client certificates must come from. An
// empty clientCA asks for none.
func LoadCertificates(cert, key, clientCA string) (*Certificates, error) {
	c := &Certificates{cert: cert, key: key, clientCA: clientCA}
	return c, c.Reload()
}

// Reload loads the files again. New connections get what they hold now; after an error they get what they got before.
func (c *Certificates) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	config, err := loadTLS(c.cert, c.key, c.clientCA)
	if err != nil {
		return err
	}
	c.current.Store(config)
	return nil
}

// Replace makes c what other is: its files, and what they held when it was loaded.
func (c *Certificates) Replace(other *Certificates) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cert, c.key, c.clientCA = other.cert, other.key, other.clientCA
	c.current.Store(other.current.Load())
}

func loadTLS(cert, key, clientCA string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load TLS certificate %s with key %s: %w", cert, key, err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"http/1.1"},
	}
	if clientCA != "" {
		if config.ClientCAs, err = loadPool(clientCA); err != nil {
			return nil, fmt.Errorf("load client CAs: %w", err)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// Config returns a configuration that follows Reload.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}

// TLSConfig is LoadCertificates for a server that never loads them again.
func TLSConfig(cert, key, clientCA string) (*tls.Config, error) {
	c, err := LoadCertificates(cert, key, clientCA)
	if err != nil {
		return nil, err
	}
	return c.Config(), nil
}

func loadPool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New(path + " has no certificate in PEM")
	}
	return pool, nil
}
