// Package setup makes a machine ready to attest: it makes the token, the key, the configuration and the first API key.
// It keeps each that already exists.
package setup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

// Options are the answers given on the command line. If Yes is set, Run uses defaults for the rest; otherwise it
// prompts.
type Options struct {
	Yes                                      bool
	Module, Token, Key                       string // hsm.uri
	PINFile, SOPINFile                       string // of an existing token; - for standard input
	PINStore                                 string // credential, file or auto
	Listen, DataDir, TLSCert, TLSKey, Scheme string // settings of the configuration, "" for the default
	User                                     string // user of the daemon, "" for the usual one
	AllowPlainHTTP                           bool   // server.allow_plain_http
	APIKeyName, APIKeyFile                   string // of the first API key; - for no file
	BackupRecipient                          string // age recipient of the log key in backups; empty leaves the key out
	Join, PassphraseFile                     string // bundle to join with, and its passphrase; - for standard input
}

// Machine is the machine to prepare, with the functions that the command provides.
type Machine struct {
	doctor.Subject
	In  io.Reader // a terminal, unless Yes is set
	Err io.Writer // prompts and progress messages
	// without the newline; standard input for -
	ReadPIN   func(file string) ([]byte, error)
	InitToken func(ctx context.Context, soPIN []byte) (hsm.InitResult, error) // in a child process of the daemon's user
	OpenKeys  func(ctx context.Context) (Keys, error)
}

// Keys creates API keys: through a running daemon, or in the files.
type Keys interface {
	CreateKey(ctx context.Context, req appliance.KeyRequest) (key appliance.APIKey, token string, err error)
	ListKeys(ctx context.Context) ([]appliance.APIKey, error)
	io.Closer
}

// Result is the result of setup.
type Result struct {
	Address       *appliance.Address `json:"address"`
	Configuration string             `json:"configuration"`
	APIKeyFile    string             `json:"apiKeyFile,omitempty"`
	APIKey        string             `json:"apiKey,omitempty"` // only if APIKeyFile is -
	Changed       bool               `json:"changed"`          // this run has changed something
	Changes       []string           `json:"changes"`          // in words
	Made          []string           `json:"made"`             // files
	Kept          []string           `json:"kept"`
	Checks        []doctor.Finding   `json:"checks"`
	Next          string             `json:"next"`
	AwaitsJournal bool               `json:"-"` // a restored backup or the first API key will begin the journal
}

// setup is one run.
type setup struct {
	Machine
	Options
	folder    string         // of the configuration
	service   service.User   // user of the daemon
	config    *config.Config // nil until it is written
	takesOver bool           // existing configuration and given PIN: token and key exist, too, and maybe a backup
	bundle    *Bundle        // of the cluster to join; nil for none
	answers   *bufio.Reader
	before    []byte         // the configuration before values were added
	chosen    map[string]any // values that were added; nil if the configuration is unchanged
	result    Result
	undo      []func() error // restore the files that were changed, if the token cannot be used
}

// Run makes the machine ready, and then runs doctor's checks.
func Run(ctx context.Context, machine Machine, options Options) (Result, error) {
	s := &setup{Machine: machine, Options: options, result: Result{Changes: []string{}, Made: []string{}, Kept: []string{}}}
	for _, step := range []func(context.Context) error{
		s.prepare, s.openBundle, s.configure, s.makeKeyOrUndo, s.pinAddress, s.placeLogKey, s.makeAPIKey, s.examineAll,
	} {
		if err := step(ctx); err != nil {
			return Result{}, fmt.Errorf("setup: %w", err)
		}
	}
	s.result.Changed = len(s.result.Changes) > 0
	return s.result, nil
}

// say writes a line for the operator.
func (s *setup) say(format string, args ...any) { fmt.Fprintf(s.Err, format+"\n", args...) }

// changed reports a change that this run has made.
func (s *setup) changed(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.result.Changes = append(s.result.Changes, what)
	s.say("made  %s", what)
}

// made reports a new file; kept reports one that existed.
func (s *setup) made(path, what string) {
	s.result.Made = append(s.result.Made, path)
	s.changed("%s  (%s)", path, what)
}

func (s *setup) kept(path, what string) {
	s.result.Kept = append(s.result.Kept, path)
	s.say("kept  %s  (%s)", path, what)
}

// prepare finds the configuration and the user of the daemon.
func (s *setup) prepare(context.Context) (err error) {
	path, err := filepath.Abs(s.Source.Path())
	if err != nil {
		return err
	}
	s.result.Configuration, s.folder = path, filepath.Dir(path)
	s.service, err = s.findUser()
	return err
}

func (s *setup) findUser() (service.User, error) {
	name := s.User
	if name == "" && os.Geteuid() == 0 {
		name = "attestd"
	}
	if name != "" {
		u, err := user.Lookup(name)
		if err == nil {
			return service.FromOS(u)
		}
		if s.User != "" {
			return service.User{}, fmt.Errorf("--user: %w", err)
		}
		s.say(
			"The user attestd, which the package creates, does not exist: the files will belong to root, and the daemon must run as root.")
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return service.User{}, err
	}
	return service.FromOS(u)
}

func (s *setup) root() service.User {
	return service.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// configure writes a configuration that names the token, unless one exists.
func (s *setup) configure(ctx context.Context) error {
	present, err := s.presentValues()
	if err != nil {
		return err
	}
	_, configured := present["hsm.uri"]
	_, several := present["hsm.uris"]
	if _, named := present["hsm.keys"]; configured || several || named {
		return s.keepConfiguration(ctx, present)
	}
	if err := s.ask(ctx); err != nil {
		return err
	}
	module, err := s.findModule()
	if err != nil {
		return err
	}
	dataDir := s.DataDir
	if dataDir == "" {
		dataDir = config.DefaultText("data_dir")
	}
	if dataDir, err = filepath.Abs(dataDir); err != nil {
		return err
	}
	if err := s.checkChoices(ctx); err != nil {
		return err
	}
	if err := s.ensureFolder(s.folder, 0o755, s.root()); err != nil {
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
		fresh = fresh && s.bundle == nil // a member has a token with the cluster's key
	}
	source, err := s.keepPIN(ctx, fresh)
	if err != nil {
		return err
	}
	if !fresh {
		s.undoFile(s.result.Configuration)
	}
	uri := hsm.URI{Token: s.Token, Object: s.Key, ModulePath: module, PINSource: source}
	if err := s.writeConfiguration(present, s.chosenValues(dataDir, uri)); err != nil {
		return err
	}
	return s.loadConfiguration()
}

// keepConfiguration uses a configuration that names a token.
func (s *setup) keepConfiguration(ctx context.Context, present map[string]any) error {
	s.kept(s.result.Configuration, "has a token already; flags and questions about it are skipped")
	if s.bundle != nil {
		if err := s.writeConfiguration(present, map[string]any{}); err != nil {
			return err
		}
	}
	if err := s.loadConfiguration(); err != nil {
		return err
	}
	return s.adoptPIN(ctx)
}

// checkChoices refuses flags that the daemon would refuse, and a port that is in use, before anything is written.
func (s *setup) checkChoices(ctx context.Context) error {
	scheme := appliance.SchemeName(or(s.Scheme, config.DefaultText("attestation.scheme")))
	if err := checkSchemeName(scheme); err != nil {
		return fmt.Errorf("--scheme: %w", err)
	}
	listen := or(s.Listen, config.DefaultText("server.listen"))
	if err := s.checkListen(listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if s.BackupRecipient != "" {
		if _, err := archive.ParseRecipient(s.BackupRecipient); err != nil {
			return fmt.Errorf("--backup-recipient: %w", err)
		}
	}
	if _, set := s.Source.Lookup(config.EnvName("server.listen")); set && s.Listen == "" {
		return nil // the environment has another address
	}
	if doctor.Listening(ctx, listen) {
		return fmt.Errorf(
			"--listen: %s is in use by another program: find it with ss -ltnp and stop it, or choose another port",
			listen)
	}
	return nil
}

// presentValues returns the values that the configuration file sets. It is empty without a file.
func (s *setup) presentValues() (map[string]any, error) {
	if !files.Exists(s.result.Configuration) {
		return nil, nil
	}
	return config.ReadFile(s.result.Configuration)
}

func (s *setup) loadConfiguration() (err error) {
	if err := s.Source.AdoptAgain(); err != nil {
		return err
	}
	s.config, err = s.Source.Load(nil)
	return err
}

// findModule returns the library's path.
func (s *setup) findModule() (string, error) {
	if s.Module != "" {
		if _, err := os.Stat(s.Module); err != nil {
			return "", fmt.Errorf("--module: %w", err)
		}
		return filepath.Abs(s.Module)
	}
	m, err := chooseModule(hsm.Modules())
	return m.Path, err
}

// isServiceFolder reports whether this is the configuration of the systemd service.
func (s *setup) isServiceFolder() bool {
	return os.Geteuid() == 0 && s.result.Configuration == config.DefaultFile
}

func isDirectory(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.IsDir()
}

// chosenValues returns the values of flags and answers that differ from the defaults.
func (s *setup) chosenValues(dataDir string, uri hsm.URI) map[string]any {
	chosen := map[string]any{"hsm.uri": uri.String()}
	for name, value := range map[string]string{"data_dir": dataDir, "server.listen": s.Listen,
		"server.tls.cert": s.TLSCert, "server.tls.key": s.TLSKey, "attestation.scheme": s.Scheme,
		"backup.recipient": s.BackupRecipient} {
		if value != "" && value != config.DefaultText(name) {
			chosen[name] = value
		}
	}
	if s.AllowPlainHTTP {
		chosen["server.allow_plain_http"] = true
	}
	return chosen
}

// writeConfiguration appends values, and the bundle's settings, to the existing text of the file.
func (s *setup) writeConfiguration(present, values map[string]any) error {
	chosen := maps.Clone(values)
	if s.bundle != nil {
		bundled, err := s.bundled(present)
		if err != nil {
			return err
		}
		maps.Copy(chosen, bundled)
	}
	maps.DeleteFunc(chosen, func(name string, _ any) bool { _, there := present[name]; return there })
	if len(chosen) == 0 {
		return nil
	}
	for name := range chosen {
		section, _, _ := strings.Cut(name, ".")
		for other := range present {
			if strings.HasPrefix(other, section+".") {
				return fmt.Errorf(
					"%s has a section %s without %s: add the setting there, then run setup again:\n  %s: %s",
					s.result.Configuration, section, name, strings.TrimPrefix(name, section+"."),
					config.YAMLValue(chosen[name]))
			}
		}
	}
	if err := s.validate(chosen); err != nil {
		return err
	}
	before, err := os.ReadFile(s.result.Configuration)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.before, s.chosen = before, chosen
	readers := service.User{UID: s.root().UID, GID: s.service.GID}
	return s.place(s.result.Configuration, s.configuration(), 0o640, readers, "the configuration")
}

// configuration is the new text of the file: the earlier text and the chosen values.
func (s *setup) configuration() []byte {
	var text bytes.Buffer
	if len(s.before) > 0 {
		text.Write(bytes.TrimRight(s.before, "\n"))
		text.WriteString("\n\n")
	}
	fmt.Fprintf(&text,
		"# Written by 'attestd setup' on %s. Other settings have their defaults;\n# 'attestd config show' prints all values with their descriptions.\n", time.Now().UTC().Format("2006-01-02"))
	if files.Exists(config.ReferenceFile) {
		fmt.Fprintf(&text, "# All settings, to copy from: %s\n", config.ReferenceFile)
	}
	text.WriteByte('\n')
	config.WriteYAML(&text, s.chosen)
	return text.Bytes()
}

// pinAddress adds the key's address to a configuration that this run has written, so that another key with the same
// label is never mistaken for it. It leaves an existing configuration unchanged.
func (s *setup) pinAddress(context.Context) error {
	if err := daemon.CheckSigner(s.config.DefaultKey(), *s.result.Address, nil); err != nil {
		return err
	}
	if s.chosen == nil || len(s.config.HSM.Keys) > 0 {
		return nil
	}
	s.chosen["hsm.address"] = s.result.Address.String()
	if err := s.replace(s.result.Configuration, s.configuration()); err != nil {
		return err
	}
	return s.loadConfiguration()
}

// validate refuses values that the daemon would refuse, before they are written.
func (s *setup) validate(chosen map[string]any) error {
	path := s.result.Configuration
	if !files.Exists(path) {
		path = os.DevNull
	}
	c, err := s.Source.LoadFile(path, chosen)
	if err != nil {
		return err
	}
	return errors.Join(daemon.CheckReferences(c), daemon.CheckPlainHTTP(c))
}

// undoFile adds a function to undo that restores the file's present state.
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
		s.undo = append(s.undo, func() error { return s.place(path, before, 0o600, s.root(), "restored") })
	}
}

// makeAPIKey makes the first API key, unless an active one exists. It makes none if a backup may be restored: the key
// would begin a new journal.
func (s *setup) makeAPIKey(ctx context.Context) (err error) {
	if s.bundle != nil {
		return nil // the cluster's API keys are valid here
	}
	if s.result.AwaitsJournal = s.takesOver && !daemon.StoreExists(s.config); s.result.AwaitsJournal {
		return nil
	}
	o, err := s.OpenKeys(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	keys, err := o.ListKeys(ctx)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.State(time.Now()) == appliance.KeyActive {
			s.say("kept  the API key %s  (%s)", k.ID, k.Name)
			return nil
		}
	}
	file := s.APIKeyFile
	if file == "" {
		file = filepath.Join(s.folder, "api-key")
	}
	if file != "-" && files.Exists(file) {
		return fmt.Errorf(
			"no API key is usable, but %s exists: remove the file, or give another one with --api-key-file", file)
	}
	_, token, err := o.CreateKey(ctx, appliance.KeyRequest{Name: s.APIKeyName})
	if err != nil {
		return err
	}
	if file == "-" {
		s.changed("the API key %q", s.APIKeyName)
		s.result.APIKey = token
		return nil
	}
	s.result.APIKeyFile = file
	return s.place(file, []byte(token+"\n"), 0o600, s.root(),
		"the token of the API key "+s.APIKeyName+"; give it to the integrator")
}

// examineAll runs doctor's checks. It drops the warning that the daemon does not run, since it is not started yet.
func (s *setup) examineAll(ctx context.Context) error {
	for _, f := range doctor.Examine(ctx, s.Subject) {
		if f.Check != "daemon" || f.State != doctor.Warn {
			s.result.Checks = append(s.result.Checks, f)
		}
	}
	s.result.Next = s.next()
	return nil
}
