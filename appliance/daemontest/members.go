package daemontest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// The role of appliances in a database, and its password.
const (
	Role     = "attestd"
	Password = "swordfish"
)

// InitStore makes the schema in a database, and the role of the appliances. It returns their store.url.
func InitStore(tb testing.TB, server *postgrestest.Server, database string) string {
	tb.Helper()
	if err := postgres.Init(tb.Context(), server.URL(database), Role, Password); err != nil {
		tb.Fatal(err)
	}
	return server.RoleURL(url.UserPassword(Role, Password), database)
}

// NewMembers prepares appliances that share a database, each with its own token, without starting them.
func NewMembers(t *testing.T, n int) []*Daemon {
	t.Helper()
	d := postgrestest.NewDatabase(t)
	store := InitStore(t, d.Server, d.Database)
	members := make([]*Daemon, n)
	for i := range members {
		m := New(t)
		m.Environ = []string{"ATTESTD_STORE_URL=" + store, "ATTESTD_CLUSTER_NAME=" + string(rune('a'+i))}
		members[i] = m
		key, err := os.ReadFile(filepath.Join(members[0].Dir, "data", "log.key"))
		if err == nil {
			err = files.Write(filepath.Join(m.Dir, "data", "log.key"), key, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return members
}

// QuorumContract is the address of the contract of a quorum.
const QuorumContract = "0x00000000000000000000000000000000c0ffee01"

// BeginLog replaces the folder's journal by an empty one with an origin of its own, and makes an API key.
func (d *Daemon) BeginLog(tb testing.TB, origin string) {
	tb.Helper()
	data := filepath.Join(d.Dir, "data")
	err := os.RemoveAll(data)
	if err == nil {
		err = os.Mkdir(data, 0o700)
	}
	if err != nil {
		tb.Fatal(err)
	}
	d.Configure("ATTESTD_JOURNAL_ORIGIN=" + origin)
	d.Token = strings.TrimSpace(d.Run(tb, "key", "create", "--name", "clients", "--rate", "unlimited"))
}

// VerifierKey asks the appliance for the key of its log.
func (d *Daemon) VerifierKey(t *testing.T) string {
	t.Helper()
	_, body := d.Ask(t, http.MethodGet, "/functions/v1/attestor", "", nil)
	var attestor struct{ Log struct{ VerifierKey string } }
	if err := json.Unmarshal([]byte(body), &attestor); err != nil {
		t.Fatal(err)
	}
	return attestor.Log.VerifierKey
}

// Twin is another appliance with a copy of the token and the log key.
func (d *Daemon) Twin(tb testing.TB) *Daemon {
	tb.Helper()
	t := &Daemon{Dir: tb.TempDir(), Token: d.Token, Program: d.Program}
	listen := FreeAddress(tb)
	t.URL = "http://" + listen
	for _, name := range []string{"tokens", "pin", "so-pin"} {
		CopyAll(tb, filepath.Join(d.Dir, name), filepath.Join(t.Dir, name))
	}
	CopyAll(tb, filepath.Join(d.Dir, "data", archive.LogKeyFile), filepath.Join(t.Dir, "data", archive.LogKeyFile))
	for _, name := range []string{"attestd.yaml", "softhsm2.conf"} {
		text, err := os.ReadFile(filepath.Join(d.Dir, name))
		if err != nil {
			tb.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte(d.Dir), []byte(t.Dir))
		text = bytes.ReplaceAll(text, []byte(strings.TrimPrefix(d.URL, "http://")), []byte(listen))
		t.Write(tb, name, string(text))
	}
	return t
}

// CopyAll copies a file, or a folder with its contents.
func CopyAll(tb testing.TB, from, to string) {
	tb.Helper()
	stat, err := os.Stat(from)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		tb.Fatal(err)
	}
	if stat.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else {
		var text []byte
		if text, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// CreateKey makes an API key without a rate limit, which all members know.
func (d *Daemon) CreateKey(tb testing.TB) string {
	tb.Helper()
	admin := client.NewAdmin(filepath.Join(d.Dir, "admin.sock"))
	defer admin.Close()
	_, token, err := admin.CreateKey(context.Background(),
		appliance.KeyRequest{Name: "cluster", Rate: appliance.Unlimited})
	if err != nil {
		tb.Fatal(err)
	}
	return token
}
