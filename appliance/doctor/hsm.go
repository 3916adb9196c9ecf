package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

// queryDaemon asks the daemon for its status. While no daemon runs, it inspects each token.
func (p *subject) queryDaemon(ctx context.Context) {
	p.socket = askSystemd(ctx)
	p.tokens = p.tokensOf(ctx)
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	p.daemon, p.daemonErr = admin.Status(ctx)
	if p.running() {
		status, err := DaemonHSM(ctx, p.config)
		for i := range p.tokens {
			p.tokens[i].setStatus(status, err)
		}
		if err == nil {
			p.apiKeys, _ = admin.ListKeys(ctx) // the daemon check reports a store that fails
		}
		return
	}
	for i := range p.tokens {
		t := &p.tokens[i]
		switch {
		case !errors.Is(p.daemonErr, client.ErrNotRunning):
			t.hsmErr = errors.New("not checked: the daemon may be logged in to the token")
		case t.credential != nil || p.softHSMFault(t.uri) != "":
			t.hsmErr = errNotLooked
		default:
			t.hsm, t.hsmErr = p.Inspect(ctx, t.position)
		}
	}
}

// errNotLooked says that another fault, which its own check reports, must be fixed first.
var errNotLooked = errors.New("not checked")

// tryCredential decrypts a PIN that is a systemd credential, as systemd does before it starts the service. Only root
// can.
func (p *subject) tryCredential(ctx context.Context, uri hsm.URI) error {
	if _, given := p.Source.Lookup(hsm.CredentialsVariable); uri.Credential() == "" || given || os.Geteuid() != 0 {
		return nil
	}
	folder, err := service.DecryptCredential(ctx, uri.Credential(), p.service)
	if err != nil {
		return err
	}
	return os.RemoveAll(folder)
}

// softHSMFault returns the SoftHSM file or folder that is missing. It is empty if all exist, or another HSM is
// configured.
func (p *subject) softHSMFault(uri hsm.URI) string {
	conf := p.Source.Getenv(softhsm.ConfVariable)
	if conf == "" || !softhsm.IsModule(uri.ModulePath) {
		return ""
	}
	if _, err := os.Stat(conf); errors.Is(err, fs.ErrNotExist) {
		return conf
	}
	if tokens := softhsm.TokenDir(conf); tokens != "" {
		if _, err := os.Stat(tokens); errors.Is(err, fs.ErrNotExist) {
			return tokens
		}
	}
	return ""
}

// checkSoftHSM runs before checkModule: without its folder, the module only reports CKR_GENERAL_ERROR.
func checkSoftHSM(_ context.Context, p *subject) []Finding {
	gone := p.softHSMFault(p.uri)
	if gone == "" {
		return nil
	}
	return []Finding{fail("restore it from its backup, which has the attestor key: "+restoreSoftHSM(gone),
		"%s is missing, and with it the token: the next start fails", gone)}
}

// restoreSoftHSM is the command that restores a SoftHSM folder from the copy that docs/operations.md describes.
func restoreSoftHSM(folder string) string {
	return "tar -C " + text.ShellWord(filepath.Dir(folder)) + " -xzf token.tar.gz; then: systemctl restart attestd"
}

func checkModule(_ context.Context, p *subject) []Finding {
	const remedy = "install the HSM's PKCS#11 library, or correct module-path in hsm.uri"
	m := p.hsm.Module
	switch path := p.uri.ModulePath; {
	case errors.Is(p.hsmErr, errNotLooked) && path != "" && !files.Exists(path):
		return []Finding{fail(remedy, "%s does not exist", path)}
	case errors.Is(p.hsmErr, errNotLooked):
		return []Finding{warn("correct the other findings first", "%s was not loaded", path)}
	case p.hsmErr != nil:
		return []Finding{fail(remedy, "%s", p.hsmErr)}
	case m.Path == "":
		return []Finding{fail(remedy, "%s", p.hsm.LastError)}
	}
	return []Finding{ok("%s: %s %s", m.Path, m.Description, m.Version)}
}

func checkToken(_ context.Context, p *subject) []Finding {
	switch t := p.hsm.Token; {
	case p.hsmErr != nil || p.hsm.Module.Path == "":
		return nil
	case t.Label == "" && t.Serial == "":
		return []Finding{fail(p.tokenRemedy(), "%s", p.hsm.LastError)}
	default:
		return []Finding{ok("%s (serial %s, %s)", t.Label, t.Serial, t.Manufacturer)}
	}
}

// tokenRemedy suggests a new token last: the key of a new token has another address, which contracts do not accept.
func (p *subject) tokenRemedy() string {
	if p.hsm.NoToken {
		return "check that the HSM's device or server is up, and that the PKCS#11 library's own configuration names it"
	}
	restore := "restore it from the HSM's own backup"
	if tokens := softhsm.TokenDir(p.Source.Getenv(softhsm.ConfVariable)); tokens != "" &&
		softhsm.IsModule(p.uri.ModulePath) {
		restore = restoreSoftHSM(tokens)
	}
	return "correct hsm.uri; if the token is lost, " + restore +
		". On a new appliance, create the token: attestd hsm init"
}

func checkPIN(_ context.Context, p *subject) []Finding {
	t := p.hsm.Token
	const newPIN = "write the PIN to a file, then run: attestd setup --yes --pin-file FILE; then: systemctl start attestd"
	const byHand = "log in once with the HSM vendor's tool, which resets the count of failures; put the right PIN where pin-source says"
	switch {
	case p.credential != nil && p.running():
		return []Finding{warn(newPIN, "the daemon is logged in, but its next start will fail: %s", p.credential)}
	case p.credential != nil:
		return []Finding{fail(newPIN, "%s", p.credential)}
	case p.hsmErr != nil || t.Label == "" && t.Serial == "":
		return nil
	case t.PINLocked:
		return []Finding{fail("let the token's security officer set a new PIN, with the HSM vendor's tool",
			"the token has locked the PIN")}
	case t.PINFinalTry:
		return []Finding{fail(byHand, "one more wrong PIN locks the token, so it was not tried")}
	case p.hsm.WrongPIN:
		return []Finding{fail("do not guess: doctor tried the PIN once, and tokens lock after a few failures. "+newPIN,
			"%s", p.hsm.LastError)}
	case p.running():
		return []Finding{ok("the daemon is logged in")}
	case p.hsm.Key.Curve == "" && !p.hsm.NotFound && !p.hsm.Ready && os.Geteuid() != 0 && p.hasCredential():
		return []Finding{warn(asRoot, "not tried: the PIN is a credential of the service, which only root can decrypt")}
	case p.hsm.Key.Curve == "" && !p.hsm.NotFound && !p.hsm.Ready:
		return []Finding{fail("put the PIN into the file or credential that pin-source names, readable for the user "+
			p.service.Name+" only", "%s", p.hsm.LastError)}
	case t.PINCountLow:
		return []Finding{warn("find out which program or person used a wrong PIN",
			"works, but the token has counted a wrong PIN since the last login")}
	}
	return []Finding{ok("works")}
}

// hasCredential reports whether the PIN is a credential of the service.
func (p *subject) hasCredential() bool { return p.uri.Credential() != "" }

func checkKey(ctx context.Context, p *subject) []Finding {
	k, other := p.hsm.Key, p.otherKey(ctx)
	switch {
	case p.hsmErr != nil || p.hsm.WrongPIN || p.hsm.Token.Label == "" && p.hsm.Token.Serial == "":
		return nil
	case k.Curve == "" && p.hsm.NotFound:
		return []Finding{fail(p.keyRemedy(), "%s", p.hsm.LastError)}
	case k.Curve == "":
		return nil // the PIN check reports the fault
	case !p.running() && !p.hsm.Ready:
		return []Finding{fail("generate another key: attestd hsm keygen; then set its label in hsm.uri", "%s",
			p.hsm.LastError)}
	case other != nil:
		return []Finding{fail(other.Remedy, "%s", other.Detail)}
	case !k.Sensitive || k.Extractable:
		return []Finding{warn("generate a key that cannot leave the token: attestd hsm keygen",
			"%s can be extracted from the HSM (hsm.allow_extractable is set)", k.Label)}
	}
	return []Finding{ok("%s: %s, cannot leave the HSM, address %s", k.Label, k.Curve, keyAddress(k))}
}

// keyRemedy suggests a new key only if the token has none: a new key has another address, which contracts do not
// accept.
func (p *subject) keyRemedy() string {
	if p.hsm.OtherKeys {
		return "correct object or id in hsm.uri, then: systemctl restart attestd"
	}
	return "restore the key from the HSM's backup. On a new appliance, create it: attestd hsm init; then set its address as attestor on chain"
}

// otherKey is the reason why attestd refuses to start with this key; nil if it starts.
func (p *subject) otherKey(ctx context.Context) *daemon.OtherKey {
	if p.hsm.Key.Address == nil {
		return nil
	}
	var newest *appliance.Address
	if r := p.newestRecord(ctx); r != nil {
		newest = &r.SignerAddress
	}
	other, _ := errors.AsType[*daemon.OtherKey](daemon.CheckSigner(p.key, *p.hsm.Key.Address, newest))
	return other
}

// keyAddress formats a key's address, which may be unknown.
func keyAddress(k hsm.KeyStatus) string {
	if k.Address == nil {
		return "unknown"
	}
	return k.Address.String()
}

// Inspection is the result of 'hsm inspect'.
type Inspection struct {
	hsm.Status
	WrongPIN bool `json:"wrongPIN,omitempty"` // refused, or not tried because it could lock the token
	NotFound bool `json:"notFound,omitempty"`
	NoToken  bool `json:"noToken,omitempty"` // the library reports no token at all
	// OtherKeys means that the token has keys, but not the configured one.
	OtherKeys bool `json:"otherKeys,omitempty"`
}

// DaemonHSM asks the daemon for the status of its HSM, since the daemon holds the login.
func DaemonHSM(ctx context.Context, c *config.Config) (status hsm.Status, err error) {
	admin := client.NewAdmin(c.Admin.Socket)
	err = admin.HSMStatus(ctx, &status)
	return status, errors.Join(err, admin.Close())
}
