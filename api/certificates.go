package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Certificates hold a TLS server's certificate and the CAs of its clients, loaded from files. They can be reloaded
// while the server runs, and are safe for concurrent use.
type Certificates struct {
	mu                  sync.Mutex // guards the next line
	cert, key, clientCA string
	current             atomic.Pointer[tls.Config]
}

// LoadCertificates loads PEM files: a certificate chain, its key, and the CAs that must have issued the client
// certificates. If clientCA is empty, clients need no certificate.
func LoadCertificates(cert, key, clientCA string) (*Certificates, error) {
	c := &Certificates{cert: cert, key: key, clientCA: clientCA}
	return c, c.Reload()
}

// Reload loads the files again, for new connections. After an error, the earlier certificates stay in use.
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

// Replace takes over the files of other and the certificates loaded from them.
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

// Config returns a configuration that follows later calls of Reload and Replace.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}

// Ends returns the expiry time of the certificate.
func (c *Certificates) Ends() time.Time { return c.current.Load().Certificates[0].Leaf.NotAfter }

func loadPool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New(path + " does not contain a PEM certificate")
	}
	return pool, nil
}
