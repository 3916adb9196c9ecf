package daemon

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance/config"
)

func TestTheConsoleIsPlainOnThisMachineOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listen, url   string
		want          string
		tls, loopback bool
	}{
		{"127.0.0.1:9465", "", "http://127.0.0.1:9465", false, true},
		{"localhost:9465", "http://attestd.localhost:9465/", "http://attestd.localhost:9465", false, true},
		{"127.0.0.1:9465", "https://console.example.com", "https://console.example.com", false, true},
		{"0.0.0.0:9465", "https://console.example.com:9465", "https://console.example.com:9465", true, false},
		{"192.0.2.1:9465", "", "https://192.0.2.1:9465", true, false},
	} {
		r := &running{config: &config.Config{}, logger: slog.New(slog.DiscardHandler), store: &Store{},
			servers: servers{certificates: &api.Certificates{}}}
		r.config.Console.Listen, r.config.Console.URL = c.listen, c.url
		host, _, _ := net.SplitHostPort(c.listen)
		ip, err := netip.ParseAddr(host)
		if err != nil {
			ip = netip.MustParseAddr("127.0.0.1")
		}
		o := r.consoleOptions(net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 9465)))
		if o.URL.String() != c.want || (o.TLS != nil) != c.tls || slices.Contains(o.Hosts, "localhost") != c.loopback {
			t.Errorf("%s, %q: %s, TLS %v, and %v", c.listen, c.url, o.URL, o.TLS != nil, o.Hosts)
		}
	}
}

func TestAReloadLeavesTheConsoleItsCertificatesOfClients(t *testing.T) {
	t.Parallel()
	r := &running{config: &config.Config{}, servers: servers{certificates: &api.Certificates{}}}
	r.config.Console.Listen = "192.0.2.1:9465"
	next := &config.Config{}
	next.Server.TLS.Cert, next.Server.TLS.Key = "cert.pem", "key.pem"
	if _, err := r.prepareTLS(next); err == nil ||
		!strings.Contains(err.Error(), "the console at 192.0.2.1:9465 accepts client certificates") {
		t.Error(err)
	}
}

func TestSettingsAreTheNewestWhereAReloadTakesThemOver(t *testing.T) {
	t.Parallel()
	started, loaded := &config.Config{}, &config.Config{}
	loaded.Log.Level, loaded.Server.Listen = "debug", "127.0.0.1:1"
	r := &running{config: started, loaded: loaded}
	for _, s := range r.settings() {
		switch s.Name {
		case "log.level":
			if s.Value != "debug" || s.Restart || s.Waiting {
				t.Errorf("%+v", s)
			}
		case "server.listen":
			if s.Value != "" || !s.Restart || !s.Waiting {
				t.Errorf("%+v", s)
			}
		}
	}
}

// A user who may see the settings need not be allowed to read the file.
func TestSettingsTellNoKeys(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "attestd.yaml")
	const text = `
hsm: { uri: "pkcs11:token=a;object=b?module-path=/usr/lib/libhsm.so&pin-source=file:/etc/attestd/pin" }
store: { url: "postgres://attestd:secret@db.example.com/attestd?password=secret" }
graphql: { upstream: "https://up.example.com/v1/graphql?key=secret", upstream_headers: ["x-api-key: secret"] }
chain: { contracts: [{ name: a, address: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", rpc: ["https://rpc.example.com/v2/secret"] }] }
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := (&config.Source{}).LoadFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := make(map[string]string)
	for _, s := range (&running{config: c, loaded: c}).settings() {
		told[s.Name] = fmt.Sprint(s.Value)
		if strings.Contains(told[s.Name], "secret") {
			t.Errorf("%s: %s", s.Name, told[s.Name])
		}
	}
	if want := "https://up.example.com/v1/graphql?(hidden)"; told["graphql.upstream"] != want {
		t.Errorf("graphql.upstream: %s, want %s", told["graphql.upstream"], want)
	}
}
