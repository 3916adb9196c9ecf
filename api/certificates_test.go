package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
)

func TestTLSWithClientCertificatesFollowsReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	ca.issue("first", file("cert.pem"), file("key.pem"))
	writePEM(t, file("ca.pem"), "CERTIFICATE", ca.certificate.Raw)
	certificates, err := api.LoadCertificates(file("cert.pem"), file("key.pem"), file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *api.Options) { o.TLS = certificates.Config() })
	pool := ca.pool()
	ca.issue("client", file("client.pem"), file("client-key.pem"))
	mine, err := tls.LoadX509KeyPair(file("client.pem"), file("client-key.pem"))
	r.must(err)
	attest := func(config *tls.Config) (answer, string, error) {
		var server string
		config.RootCAs = pool
		config.VerifyConnection = func(s tls.ConnectionState) error {
			server = s.PeerCertificates[0].Subject.CommonName
			return nil
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		a, err := r.try(&http.Client{Transport: transport}, "POST", "https://"+r.address+attestPath, strings.NewReader(good),
			"x-api-key", r.token, "Content-Type", "application/json")
		return a, server, err
	}
	if a, server, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}}); err != nil || a.status != 200 || server != "first" {
		t.Errorf("%s by %q: %v", a, server, err)
	}
	if _, _, err := attest(&tls.Config{}); err == nil {
		t.Error("no certificate was asked for")
	}
	if _, _, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}

	ca.issue("second", file("cert.pem"), file("key.pem"))
	r.must(certificates.Reload())
	if a, server, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}}); err != nil || a.status != 200 || server != "second" {
		t.Errorf("after reload: %s by %q: %v", a, server, err)
	}
	r.must(os.WriteFile(file("cert.pem"), []byte("rubbish"), 0o600))
	if certificates.Reload() == nil {
		t.Error("rubbish was loaded")
	}
	if a, server, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}}); err != nil || a.status != 200 || server != "second" {
		t.Errorf("after a failed reload: %s by %q: %v", a, server, err)
	}
	large := strings.NewReader(strings.Repeat("a", 1<<20))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{mine}}}
	defer transport.CloseIdleConnections()
	a, err := r.try(&http.Client{Transport: transport}, "POST", "https://"+r.address+attestPath, large, "x-api-key", r.token, "Content-Type", "application/json")
	if err != nil || a.status != 413 {
		t.Errorf("1 MB over TLS: %s, %v", a, err)
	}
}

// authority issues certificates for 127.0.0.1.
type authority struct {
	testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{TB: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	der, a.key = a.sign(template, nil)
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

func (a *authority) issue(name, certFile, keyFile string) {
	a.Helper()
	der, key := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a)
	writePEM(a, certFile, "CERTIFICATE", der)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	writePEM(a, keyFile, "PRIVATE KEY", secret)
}

// sign makes a certificate that issuer signs, or a self-signed one if issuer is nil.
func (a *authority) sign(template *x509.Certificate, issuer *authority) ([]byte, *ecdsa.PrivateKey) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.certificate, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	return der, key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
