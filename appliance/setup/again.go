package setup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm"
)

// Ignored returns the given flags that would have no effect, since the configuration already names a token and has
// other values. It returns nil if the configuration cannot be read; Run reports that error.
func (o Options) Ignored(from *config.Source, given func(flag string) bool) (flags []string) {
	path := from.Path()
	if !files.Exists(path) {
		return nil
	}
	present, err := config.ReadFile(path)
	if err != nil || present["hsm.uri"] == nil && present["hsm.uris"] == nil && present["hsm.keys"] == nil {
		return nil
	}
	c, err := from.Load(nil)
	if err != nil {
		return nil
	}
	token, _ := hsm.ParseURI(append(c.TokenURIs(), "")[0])
	for _, f := range []struct{ flag, is, wanted string }{
		{"module", token.ModulePath, o.Module}, {"token", token.Token, o.Token}, {"key", token.Object, o.Key},
		{"listen", c.Server.Listen, o.Listen}, {"tls-cert", c.Server.TLS.Cert, o.TLSCert},
		{"tls-key", c.Server.TLS.Key, o.TLSKey},
		{"allow-plain-http", fmt.Sprint(c.Server.AllowPlainHTTP), fmt.Sprint(o.AllowPlainHTTP)},
		{"backup-recipient", c.Backup.Recipient, o.BackupRecipient},
		{"scheme", c.Attestation.Scheme, o.Scheme}, {"data-dir", absolute(c.DataDir), absolute(o.DataDir)},
	} {
		if given(f.flag) && f.is != f.wanted {
			flags = append(flags, "--"+f.flag)
		}
	}
	return flags
}

func absolute(path string) string {
	if all, err := filepath.Abs(path); err == nil {
		return all
	}
	return path
}

// next is the command that starts the daemon. Without systemd, it runs the program as the service's user.
func (s *setup) next() string {
	if s.isServiceFolder() && isDirectory("/run/systemd/system") {
		return "systemctl enable --now attestd"
	}
	serve := text.ShellWord(program()) + " serve --config " + text.ShellWord(s.result.Configuration)
	if os.Geteuid() != 0 || s.service.IsRoot() {
		return serve
	}
	user := text.ShellWord(s.service.Name)
	serve = "setpriv --reuid=" + user + " --regid=" + strconv.FormatUint(uint64(s.service.GID), 10) +
		" --init-groups " + serve
	if folder := filepath.Dir(s.config.Admin.Socket); !files.Exists(folder) { // systemd would create it at each start
		serve = "install -d -o " + user + " -m 0750 " + text.ShellWord(folder) + " && " + serve
	}
	return serve
}

// program is the command name of this program, or its path if it is not in PATH.
func program() string {
	self, err := os.Executable()
	if err != nil {
		return "attestd"
	}
	if found, err := exec.LookPath("attestd"); err == nil {
		if found, err = filepath.EvalSymlinks(found); err == nil && found == self {
			return "attestd"
		}
	}
	return self
}
