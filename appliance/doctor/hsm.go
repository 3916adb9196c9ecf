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

// ask asks the daemon for its status. While no daemon runs, it inspects each token.
func (p *subject) ask(ctx context.Context) {
	p.socket = askSystemd(ctx)
	p.tokens = p.tokensOf(ctx)
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	p.daemon, p.daemonErr = admin.Status(ctx)
	if p.running() {
		status, err := DaemonHSM(ctx, p.config)
		for i := range p.tokens {
			p.tokens[i].told(status, err)
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
			t.hsmErr = errors.New("not looked at, since the daemon may hold the token")
		case t.credential != nil || p.softHSMFault(t.uri) != "":
			t.hsmErr = errNotLooked
		default:
			t.hsm, t.hsmErr = p.Inspect(ctx, t.position)
		}
	}
}

// errNotLooked says that another fault, which its own check reports, must be fixed first.
var errNotLooked = errors.New("not looked at")

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
	return []Finding{fail("restore it from its copy, and with it the attestor key: "+restoreSoftHSM(gone),
		"%s is gone; without it there is no token, and the next start fails", gone)}
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
		return []Finding{fail(remedy, "%s is not there", path)}
	case errors.Is(p.hsmErr, errNotLooked):
		return []Finding{warn("mend what is told above and below first", "%s was not loaded", path)}
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
		return "see that the HSM's device or server is up, and that the library's own configuration names it"
	}
	restore := "restore the HSM's own backup to it"
	if tokens := softhsm.TokenDir(p.Source.Getenv(softhsm.ConfVariable)); tokens != "" && softhsm.IsModule(p.uri.ModulePath) {
		restore = restoreSoftHSM(tokens)
	}
	return "correct hsm.uri; where the token is lost, " + restore + ". On a new appliance: attestd hsm init makes it"
}

func checkPIN(_ context.Context, p *subject) []Finding {
	t := p.hsm.Token
	const newPIN = "with the PIN in a file: attestd setup --yes --pin-file FILE; then: systemctl start attestd"
	const byHand = "log in once by hand with the token's own tool, which resets the count; the right PIN belongs where pin-source says"
	switch {
	case p.credential != nil && p.running():
		return []Finding{warn(newPIN, "the daemon is logged in, but cannot start again: %s", p.credential)}
	case p.credential != nil:
		return []Finding{fail(newPIN, "%s", p.credential)}
	case p.hsmErr != nil || t.Label == "" && t.Serial == "":
		return nil
	case t.PINLocked:
		return []Finding{fail("the token's security officer must set a new PIN", "the token has locked it")}
	case t.PINFinalTry:
		return []Finding{fail(byHand, "one more wrong PIN locks the token, so it was not tried")}
	case p.hsm.WrongPIN:
		return []Finding{fail("it was tried once; do not try others. "+newPIN, "%s", p.hsm.LastError)}
	case p.running():
		return []Finding{ok("the daemon is logged in")}
	case p.hsm.Key.Curve == "" && !p.hsm.NotFound && !p.hsm.Ready && os.Geteuid() != 0 && p.hasCredential():
		return []Finding{warn("run doctor as root, or start attestd", "not tried: it is a credential of the service, which only root can decrypt")}
	case p.hsm.Key.Curve == "" && !p.hsm.NotFound && !p.hsm.Ready:
		return []Finding{fail("the file or credential that pin-source names must hold the PIN, and be readable for the user "+p.service.Name+" only", "%s", p.hsm.LastError)}
	case t.PINCountLow:
		return []Finding{warn("find out who tried it", "works, but a wrong one was tried since the last login")}
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
		return []Finding{fail("attestd hsm init makes the key that hsm.uri names: one with another address, to be set as attestor on chain. Where there was one, restore the HSM's backup", "%s", p.hsm.LastError)}
	case k.Curve == "":
		return nil // the PIN check reports the fault
	case !p.running() && !p.hsm.Ready:
		return []Finding{fail("make another key, attestd hsm keygen, and name it in hsm.uri", "%s", p.hsm.LastError)}
	case other != nil:
		return []Finding{fail(other.Remedy, "%s", other.Detail)}
	case !k.Sensitive || k.Extractable:
		return []Finding{warn("make a key that cannot leave the token: attestd hsm keygen", "%s could leave the HSM (hsm.allow_extractable is set)", k.Label)}
	}
	return []Finding{ok("%s: %s, cannot leave the HSM, address %s", k.Label, k.Curve, keyAddress(k))}
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
}

// DaemonHSM asks the daemon for the status of its HSM, since the daemon holds the login.
func DaemonHSM(ctx context.Context, c *config.Config) (status hsm.Status, err error) {
	admin := client.NewAdmin(c.Admin.Socket)
	err = admin.HSMStatus(ctx, &status)
	return status, errors.Join(err, admin.Close())
}
