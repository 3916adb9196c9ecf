package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

func newSetup(a *app) *cobra.Command {
	s := setup{app: a}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make this machine ready to attest: token, key, configuration, API key",
		Long: `Make this machine ready to attest: find the HSM's PKCS#11 module, make or find the token, keep its PIN where only the
service reads it, make the key, write the configuration, make the first API key, and check everything as 'attestd
doctor' does. It ends with the address that must be set as attestor on chain, and the command that starts the service.

At a terminal it asks, with an answer ready for each question; with --yes it asks nothing. On a fresh machine with
SoftHSM, 'attestd setup --yes' leaves a working appliance. A second run changes nothing that is there, and does what is
missing. Run it as root; files then belong to the service's user.`,
		Example: `  attestd setup
  attestd setup --yes
  attestd setup --yes --module /opt/cloudhsm/lib/libcloudhsm_pkcs11.so --token cavium --pin-file /root/pin
  attestd setup --yes --listen 0.0.0.0:443 --tls-cert /etc/attestd/tls.crt --tls-key /etc/attestd/tls.key`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !s.yes && (!isTerminal(s.in) || s.json()) {
				return usagef(cmd, "there is no terminal to ask at: give --yes, and with flags what differs from the defaults")
			}
			if !slices.Contains([]string{"auto", "credential", "file"}, s.pinStore) {
				return usagef(cmd, "--pin-store must be auto, credential or file, not %q", s.pinStore)
			}
			return s.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&s.yes, "yes", "y", false, "ask nothing")
	f.StringVar(&s.module, "module", "", "PKCS#11 library (default: the one of an HSM that is found, else SoftHSM)")
	f.StringVar(&s.token, "token", "attestd", "label of the token; a SoftHSM token is made where there is none")
	f.StringVar(&s.object, "key", "attestor", "label of the key; it is made where there is none")
	f.StringVar(&s.pinFile, "pin-file", "", "file that holds the user PIN of a token that exists; - for standard input")
	f.StringVar(&s.soPINFile, "so-pin-file", "", "file that holds the security officer's PIN, to initialise a token of an HSM")
	f.StringVar(&s.pinStore, "pin-store", "auto", "how to keep the PIN: credential (encrypted by systemd-creds), file, or auto: a credential where it works")
	f.StringVar(&s.listen, "listen", "", "address and port of the API (server.listen)")
	f.StringVar(&s.tlsCert, "tls-cert", "", "certificate chain (server.tls.cert)")
	f.StringVar(&s.tlsKey, "tls-key", "", "the certificate's key (server.tls.key)")
	f.StringVar(&s.scheme, "scheme", "", "digest scheme (attestation.scheme): what the verifying contract expects")
	f.StringVar(&s.dataDir, "data-dir", "", "where keys and journal are kept (data_dir)")
	f.StringVar(&s.user, "user", "", "user as whom the daemon runs (default: attestd where root runs setup, else you)")
	f.StringVar(&s.keyName, "api-key-name", "first", "name of the first API key")
	f.StringVar(&s.keyFile, "api-key-file", "", "file for the first API key's token; - shows it once (default: api-key beside the configuration)")
	must(cmd.RegisterFlagCompletionFunc("pin-store", cobra.FixedCompletions([]string{"auto", "credential", "file"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// setup is one run of the command.
type setup struct {
	*app
	yes                                      bool
	module, token, object                    string
	pinFile, soPINFile, pinStore             string
	listen, dataDir, tlsCert, tlsKey, scheme string
	user, keyName, keyFile                   string

	folder  string   // of the configuration
	service identity // as whom the daemon runs
	config  *config  // once it is written
	answers *bufio.Reader
	result  setupResult
	undo    []func() error // takes back what was chosen, should the token not be as it was said to be
}

// setupResult is what setup leaves behind.
type setupResult struct {
	Address       *appliance.Address `json:"address"`
	Configuration string             `json:"configuration"`
	APIKeyFile    string             `json:"apiKeyFile,omitempty"`
	APIKey        string             `json:"apiKey,omitempty"` // only where no file was wanted
	Made          []string           `json:"made"`             // files
	Kept          []string           `json:"kept"`
	Checks        []finding          `json:"checks"`
	Next          string             `json:"next"`
}

func (s *setup) run(ctx context.Context) error {
	s.result.Made, s.result.Kept = []string{}, []string{}
	for _, step := range []func(context.Context) error{
		s.prepare, s.configure, s.makeKeyOrUndo, s.makeAPIKey, s.examineAll,
	} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("setup: %w", err)
		}
	}
	if err := s.print(s.result, s.tell); err != nil {
		return err
	}
	if worst(s.result.Checks) == stateFail {
		return silentFailure{}
	}
	return nil
}

// made tells of something new; kept of something that was there.
func (s *setup) made(path, what string) {
	s.result.Made = append(s.result.Made, path)
	s.say("made  %s  (%s)", path, what)
}

func (s *setup) kept(path, what string) {
	s.result.Kept = append(s.result.Kept, path)
	s.say("kept  %s  (%s)", path, what)
}

// prepare finds out for whom files are made, and makes the folder of the configuration.
func (s *setup) prepare(context.Context) (err error) {
	path, err := filepath.Abs(s.effectiveConfigPath())
	if err != nil {
		return err
	}
	s.result.Configuration, s.folder = path, filepath.Dir(path)
	if s.service, err = s.findUser(); err != nil {
		return err
	}
	return s.ensureFolder(s.folder, 0o755, identity{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())})
}

func (s *setup) findUser() (identity, error) {
	name := s.user
	if name == "" && os.Geteuid() == 0 {
		name = "attestd"
	}
	if name != "" {
		u, err := user.Lookup(name)
		if err == nil {
			return identityOf(u)
		}
		if s.user != "" {
			return identity{}, fmt.Errorf("--user: %w", err)
		}
		s.say("There is no user attestd, which the package makes: files will be root's, and the daemon must run as root.")
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return identity{}, err
	}
	return identityOf(u)
}

func (s *setup) ensureFolder(path string, mode fs.FileMode, owner identity) error {
	if exists(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	return s.own(path, mode, owner)
}

// own gives what root made in a folder of root's to the owner.
func (s *setup) own(path string, mode fs.FileMode, owner identity) error {
	if os.Geteuid() == 0 {
		if err := os.Lchown(path, int(owner.uid), int(owner.gid)); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// place makes a file in a folder of root's. One that is there keeps its owner and mode.
func (s *setup) place(path string, content []byte, mode fs.FileMode, owner identity, what string) error {
	if stat, err := os.Stat(path); err == nil {
		was := stat.Sys().(*syscall.Stat_t)
		mode, owner = stat.Mode().Perm(), identity{uid: was.Uid, gid: was.Gid}
	}
	if err := writeFileSynced(path, content, 0o600); err != nil {
		return err
	}
	if err := s.own(path, mode, owner); err != nil {
		return err
	}
	s.made(path, what)
	return nil
}

func (s *setup) root() identity {
	return identity{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
}

// configure leaves a configuration that names the token, unless there is one.
func (s *setup) configure(ctx context.Context) error {
	present, err := s.presentValues()
	if err != nil {
		return err
	}
	if _, configured := present["hsm.uri"]; configured {
		s.kept(s.result.Configuration, "names the token already; flags and questions about it are left out")
		return s.loadConfiguration()
	}
	if err := s.ask(); err != nil {
		return err
	}
	module, err := s.findModule()
	if err != nil {
		return err
	}
	dataDir := s.dataDir
	if dataDir == "" {
		dataDir = defaultText("data_dir")
	}
	if dataDir, err = filepath.Abs(dataDir); err != nil {
		return err
	}
	if err := s.ensureFolder(dataDir, 0o700, s.service); err != nil {
		return err
	}
	fresh := false
	if softhsm.IsModule(module) {
		if fresh, err = s.prepareSoftHSM(dataDir); err != nil {
			return err
		}
	}
	source, err := s.keepPIN(ctx, fresh)
	if err != nil {
		return err
	}
	if !fresh {
		s.undoFile(s.result.Configuration)
	}
	uri := hsm.URI{Token: s.token, Object: s.object, ModulePath: module, PINSource: source}
	if err := s.writeConfiguration(present, dataDir, uri); err != nil {
		return err
	}
	return s.loadConfiguration()
}

// presentValues are those that the configuration file sets; none where there is no file, or one of comments only.
func (s *setup) presentValues() (map[string]any, error) {
	if !exists(s.result.Configuration) {
		return nil, nil
	}
	return readConfigFile(s.result.Configuration)
}

func (s *setup) loadConfiguration() (err error) {
	s.adopted = false // the environment file may be new
	s.config, err = s.app.config(nil)
	return err
}

// findModule returns the library's path.
func (s *setup) findModule() (string, error) {
	if s.module != "" {
		if _, err := os.Stat(s.module); err != nil {
			return "", fmt.Errorf("--module: %w", err)
		}
		return filepath.Abs(s.module)
	}
	m, err := chooseModule(hsm.Modules())
	return m.Path, err
}

// prepareSoftHSM gives the daemon tokens of its own, in data_dir, unless SOFTHSM2_CONF names others: those of the
// system belong to a group that the daemon need not be in. fresh says that there is no token yet.
func (s *setup) prepareSoftHSM(dataDir string) (fresh bool, err error) {
	environment := filepath.Join(s.folder, environmentName)
	if err := s.adoptEnvironment(); err != nil {
		return false, err
	}
	conf := s.getenv(softhsm.ConfVariable)
	if conf == "" {
		conf = filepath.Join(s.folder, "softhsm2.conf")
		tokens := filepath.Join(dataDir, "softhsm")
		if err := s.ensureFolder(tokens, 0o700, s.service); err != nil {
			return false, err
		}
		if !exists(conf) {
			text := "# SoftHSM for attestd: softhsm2.conf(5).\n" + softhsm.Conf(tokens)
			if err := s.place(conf, []byte(text), 0o644, s.root(), "SoftHSM's configuration; its tokens are in "+tokens); err != nil {
				return false, err
			}
		}
	}
	if err := s.ensureVariable(environment, softhsm.ConfVariable, conf); err != nil {
		return false, err
	}
	entries, err := os.ReadDir(softhsm.TokenDir(conf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("SoftHSM's tokens (directories.tokendir in %s): %w", conf, err)
	}
	return len(entries) == 0, nil
}

// ensureVariable adds a variable to the environment file, unless it is there.
func (s *setup) ensureVariable(path, name, value string) error {
	variables, err := readEnvironment(path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(variables, func(v variable) bool { return v.name == name }) {
		s.kept(path, "sets "+name+" already")
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(text) == 0 {
		text = []byte("# The environment of the service attestd, and of attestd's commands: NAME=value.\n")
	} else if !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	return s.place(path, fmt.Appendf(text, "%s=%s\n", name, value), 0o644, s.root(), "sets "+name)
}

// keepPIN returns the pin-source of a PIN that is kept already, or keeps one: as a credential, which the unit passes on to
// the service (LoadCredentialEncrypted=), or in a file of the service's user.
func (s *setup) keepPIN(ctx context.Context, fresh bool) (source string, err error) {
	file, credential := filepath.Join(s.folder, "pin"), filepath.Join(encryptedCredentials, credentialPrefix+"pin")
	const credentialSource = "credential:pin"
	switch {
	case s.isServiceFolder() && exists(credential):
		s.kept(credential, "the PIN")
		return credentialSource, nil
	case exists(file):
		s.kept(file, "the PIN")
		return "file:" + file, nil
	}
	pin, err := s.choosePIN(fresh)
	if err != nil {
		return "", err
	}
	if !fresh { // else the token that is about to be made has this PIN, and no other copy of it exists
		s.undoFile(file)
		s.undoFile(credential)
	}
	if s.pinStore == "credential" || s.pinStore == "auto" && s.isServiceFolder() && isDirectory("/run/systemd/system") {
		err := encryptCredential(ctx, pin, credential)
		if err == nil {
			s.made(credential, "the PIN, encrypted to this machine")
			return credentialSource, nil
		}
		if s.pinStore == "credential" {
			return "", err
		}
		s.say("The PIN is kept in a file, for it cannot be encrypted here: %v", err)
	}
	return "file:" + file, s.place(file, append(pin, '\n'), 0o400, s.service, "the PIN, for the user "+s.service.name+" only")
}

// isServiceFolder says whether this is the configuration of the service that systemd runs.
func (s *setup) isServiceFolder() bool {
	return os.Geteuid() == 0 && s.result.Configuration == defaultConfigFile
}

func isDirectory(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.IsDir()
}

// encryptCredential keeps the PIN so that only this machine's systemd can read it, and proves that it can. It does not
// bind it to the TPM's PCRs: an update of the firmware would change them, and lose the PIN.
func encryptCredential(ctx context.Context, pin []byte, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	sealed, err := runSystemdCreds(ctx, pin, "encrypt", "--name=pin", "--tpm2-pcrs=", "-", "-")
	if err != nil {
		return err
	}
	if err := writeFileSynced(path, sealed, 0o600); err != nil {
		return err
	}
	again, err := runSystemdCreds(ctx, nil, "decrypt", "--name=pin", path, "-")
	if err == nil && !bytes.Equal(again, pin) {
		err = errors.New("systemd-creds does not give back what it was given")
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// choosePIN returns the PIN that is given, one that is typed, or a new one for a SoftHSM token that is to be made.
func (s *setup) choosePIN(fresh bool) ([]byte, error) {
	switch {
	case s.pinFile != "":
		pin, err := s.readSmall(s.pinFile, maxPIN)
		if pin = bytes.TrimRight(pin, "\r\n"); err == nil && len(pin) == 0 {
			err = errors.New("--pin-file: the file is empty")
		}
		return pin, err
	case fresh:
		return randomPIN(), nil
	case s.yes:
		return nil, errors.New("the token's user PIN is needed: give the file that holds it with --pin-file")
	}
	fmt.Fprint(s.err, "User PIN of the token (not shown): ")
	pin, err := term.ReadPassword(int(s.in.(*os.File).Fd())) // a terminal, for without one there is --yes
	fmt.Fprintln(s.err)
	if err == nil && len(pin) == 0 {
		err = errors.New("the PIN is empty")
	}
	return pin, err
}

func randomPIN() []byte {
	b := make([]byte, 16)
	rand.Read(b) // never fails (Go 1.24)
	return []byte(hex.EncodeToString(b))
}

// ask goes through what can be chosen, at a terminal. What flags say is not asked.
func (s *setup) ask() error {
	if s.yes {
		return nil
	}
	s.answers = bufio.NewReader(s.in)
	if s.module == "" {
		if err := s.askModule(); err != nil {
			return err
		}
	}
	for _, q := range []struct {
		text    string
		value   *string
		initial string
	}{
		{"Label of the token", &s.token, s.token},
		{"Label of the key in it", &s.object, s.object},
		{"Address and port of the API", &s.listen, or(s.listen, defaultText("server.listen"))},
		{"Digest scheme that the verifying contract expects", &s.scheme, or(s.scheme, defaultText("attestation.scheme"))},
	} {
		answer, err := s.askText(q.text, q.initial)
		if err != nil {
			return err
		}
		*q.value = answer
	}
	return nil
}

func (s *setup) askModule() error {
	found := hsm.Modules()
	if len(found) == 0 {
		return nil // findModule says what to do
	}
	preferred := 1
	s.say("PKCS#11 modules on this machine:")
	for i, m := range found {
		s.say("  %d  %s  %s", i+1, m.Name, m.Path)
		if chosen, err := chooseModule(found); err == nil && chosen.Path == m.Path {
			preferred = i + 1
		}
	}
	for {
		answer, err := s.askText("Which one (a number, or a path)", strconv.Itoa(preferred))
		if err != nil {
			return err
		}
		n, numberErr := strconv.Atoi(answer)
		switch {
		case numberErr == nil && n >= 1 && n <= len(found):
			s.module = found[n-1].Path
			return nil
		case filepath.IsAbs(answer) && exists(answer):
			s.module = answer
			return nil
		}
		s.say("%q is neither one of these numbers nor the path of a file.", answer)
	}
}

func (s *setup) askText(question, initial string) (string, error) {
	fmt.Fprintf(s.err, "%s [%s]: ", question, initial)
	line, err := s.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return or(strings.TrimSpace(line), initial), nil
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// defaultText is the default of a value that is text.
func defaultText(name string) string {
	for _, s := range settings() {
		if s.name == name {
			return s.value.(string)
		}
	}
	panic("settings(): no " + name)
}

// writeConfiguration writes what differs from the defaults, beneath what is in the file already.
func (s *setup) writeConfiguration(present map[string]any, dataDir string, uri hsm.URI) error {
	values := map[string]string{"hsm.uri": uri.String(), "data_dir": dataDir, "server.listen": s.listen,
		"server.tls.cert": s.tlsCert, "server.tls.key": s.tlsKey, "attestation.scheme": s.scheme}
	chosen := make(map[string]any)
	for name, value := range values {
		_, there := present[name]
		if !there && value != "" && (name == "hsm.uri" || value != defaultText(name)) {
			chosen[name] = value
		}
	}
	for name := range chosen {
		section, _, _ := strings.Cut(name, ".")
		for other := range present {
			if strings.HasPrefix(other, section+".") {
				return fmt.Errorf("%s has a section %s already, without %s: add it there, then try again:\n  %s: %s",
					s.result.Configuration, section, name, strings.TrimPrefix(name, section+"."), yamlValue(chosen[name]))
			}
		}
	}
	if err := s.validate(chosen); err != nil {
		return err
	}
	var text bytes.Buffer
	if before, err := os.ReadFile(s.result.Configuration); err == nil {
		text.Write(bytes.TrimRight(before, "\n"))
		text.WriteString("\n\n")
	}
	fmt.Fprintf(&text, "# Written by 'attestd setup' on %s. What is not here has its default;\n# 'attestd config show' prints every value and what it is for.\n\n", time.Now().UTC().Format("2006-01-02"))
	writeYAML(&text, chosen)
	return s.place(s.result.Configuration, text.Bytes(), 0o644, s.root(), "the configuration")
}

// validate refuses values that the daemon would refuse, before they are written.
func (s *setup) validate(chosen map[string]any) error {
	path := s.result.Configuration
	if !exists(path) {
		path = os.DevNull
	}
	c, _, err := loadConfig(path, s.environ, chosen)
	if err != nil {
		return err
	}
	return checkReferences(c)
}

// undoFile notes how a file is now.
func (s *setup) undoFile(path string) {
	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.undo = append(s.undo, func() error {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
	case err == nil:
		s.undo = append(s.undo, func() error { return s.place(path, before, 0o600, s.root(), "as it was") })
	}
}

// makeKeyOrUndo takes PIN and configuration back where they lead to no token, so that the next run asks again.
func (s *setup) makeKeyOrUndo(ctx context.Context) error {
	err := s.makeKey(ctx)
	if err == nil || len(s.undo) == 0 {
		return err
	}
	for _, undo := range s.undo {
		err = errors.Join(err, undo())
	}
	s.say("The configuration and the PIN are as before: no token and key could be had with what was said.")
	return err
}

// makeKey sees to it that the token and the key are there, and learns the address. While the daemon runs they are, and it
// holds the login.
func (s *setup) makeKey(ctx context.Context) error {
	daemon := client.NewAdmin(s.config.Admin.Socket)
	status, err := daemon.Status(ctx)
	_ = daemon.Close()
	if err == nil {
		s.result.Address = &status.SignerAddress
		s.say("kept  the key %s  (the daemon signs with it)", status.SignerAddress)
		return nil
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return err
	}
	if err := s.ensureFolder(s.config.DataDir, 0o700, s.service); err != nil {
		return err
	}
	soPIN, err := s.officerPIN()
	if err != nil {
		return err
	}
	made, err := s.initToken(ctx, soPIN)
	if err != nil {
		return err
	}
	s.result.Address = &made.Key.Address
	state := map[bool]string{true: "made", false: "kept"}
	s.say("%s  the token %q  (serial %s)", state[made.TokenCreated], made.Token, made.Serial)
	s.say("%s  the key %q  (address %s)", state[made.Created], made.Key.Label, made.Key.Address)
	return nil
}

// officerPIN returns the security officer's PIN for a token that must be initialised. For SoftHSM one is made, and kept
// in a file that only root reads: with it alone, a lost user PIN can be replaced.
func (s *setup) officerPIN() ([]byte, error) {
	if s.soPINFile != "" {
		pin, err := s.readSmall(s.soPINFile, maxPIN)
		return bytes.TrimRight(pin, "\r\n"), err
	}
	uri, err := hsm.ParseURI(s.config.HSM.URI)
	if err != nil || !softhsm.IsModule(uri.ModulePath) {
		return nil, err
	}
	path := filepath.Join(s.folder, "so-pin")
	if exists(path) {
		pin, err := s.readSmall(path, maxPIN)
		return bytes.TrimRight(pin, "\r\n"), err
	}
	if entries, err := os.ReadDir(softhsm.TokenDir(s.getenv(softhsm.ConfVariable))); err == nil && len(entries) > 0 {
		return nil, nil // the token is there
	}
	pin := randomPIN()
	return pin, s.place(path, append(pin, '\n'), 0o400, s.root(), "the security officer's PIN; move it off this machine, it replaces a lost PIN")
}

// initToken runs 'hsm init', which does its work as the service's user.
func (s *setup) initToken(ctx context.Context, soPIN []byte) (result hsm.InitResult, err error) {
	machine := *s.app
	machine.output = "json"
	cmd, err := machine.self(ctx, "hsm", "init", "--so-pin-file", "-")
	if err != nil {
		return result, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(soPIN), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return result, initFailure(err, strings.TrimPrefix(strings.TrimSpace(stderr.String()), "attestd: "))
	}
	return result, json.Unmarshal(stdout.Bytes(), &result)
}

// initFailure keeps the exit status of a PIN that was refused.
func initFailure(err error, said string) error {
	if exit, isExit := errors.AsType[*exec.ExitError](err); isExit && exit.ExitCode() == exitPIN {
		return &refusedHere{said}
	}
	if said == "" {
		return fmt.Errorf("make the token and the key: %w", err)
	}
	return errors.New(said)
}

// refusedHere is hsm.ErrPIN that a child of this program met.
type refusedHere struct{ said string }

func (e *refusedHere) Error() string { return e.said }
func (e *refusedHere) Unwrap() error { return hsm.ErrPIN }

// makeAPIKey makes the first API key, unless there is one that works.
func (s *setup) makeAPIKey(ctx context.Context) (err error) {
	o, err := s.office(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	keys, err := o.ListKeys(ctx)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if viewKey(k).State == "active" {
			s.say("kept  the API key %s  (%s)", k.ID, k.Name)
			return nil
		}
	}
	file := s.keyFile
	if file == "" {
		file = filepath.Join(s.folder, "api-key")
	}
	if file != "-" && exists(file) {
		return fmt.Errorf("no API key works, but %s exists: remove it, or name another file with --api-key-file", file)
	}
	_, token, err := o.CreateKey(ctx, appliance.KeyRequest{Name: s.keyName})
	if err != nil {
		return err
	}
	if file == "-" {
		s.result.APIKey = token
		return nil
	}
	s.result.APIKeyFile = file
	return s.place(file, []byte(token+"\n"), 0o600, s.root(), "the token of the API key "+s.keyName+"; hand it to the integrator")
}

// examineAll is doctor, but for the daemon, which has not been started yet.
func (s *setup) examineAll(ctx context.Context) error {
	for _, f := range s.examine(ctx) {
		if f.Check != "daemon" || f.State != stateWarn {
			s.result.Checks = append(s.result.Checks, f)
		}
	}
	s.result.Next = s.next()
	return nil
}

// next is the command that starts the daemon.
func (s *setup) next() string {
	if s.isServiceFolder() && isDirectory("/run/systemd/system") {
		return "systemctl enable --now attestd"
	}
	return "attestd serve --config " + shellQuote(s.result.Configuration)
}

func (s *setup) tell(w io.Writer) {
	var troubles []finding
	for _, f := range s.result.Checks {
		if f.State != stateOK {
			troubles = append(troubles, f)
		}
	}
	s.say("%d checks, %d of them without fault.", len(s.result.Checks), len(s.result.Checks)-len(troubles))
	writeFindings(s.err, troubles)
	fmt.Fprintf(w, "\nThe attestor's address is %s\n", s.result.Address)
	fmt.Fprintln(w, "Set it as attestor in the contract on chain.")
	if s.result.APIKey != "" {
		fmt.Fprintf(w, "\nThe token of the API key %q, not shown again: %s\n", s.keyName, s.result.APIKey)
	}
	if worst(s.result.Checks) == stateFail {
		fmt.Fprintln(w, "\nMend what failed above, then run setup again.")
		return
	}
	fmt.Fprintf(w, "\nNext:\n\n  %s\n", s.result.Next)
}
