package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
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

Where a configuration is there that names the token, it is kept, and --pin-file puts the PIN where it says: so a machine
takes over from one that is lost, with its configuration, its token, and then 'attestd restore'.

At a terminal it asks, with an answer ready for each question; with --yes it asks nothing. On a fresh machine with
SoftHSM, 'attestd setup --yes' leaves a working appliance. A second run changes nothing that is there, and does what is
missing. Run it as root; files then belong to the service's user.`,
		Example: `  attestd setup
  attestd setup --yes
  attestd setup --yes --module /opt/cloudhsm/lib/libcloudhsm_pkcs11.so --token cavium --pin-file /root/pin
  attestd setup --yes --pin-file /root/pin
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
	s.addFlags(cmd)
	return cmd
}

func (s *setup) addFlags(cmd *cobra.Command) {
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
}

// setup is one run of the command.
type setup struct {
	*app
	yes                                      bool
	module, token, object                    string
	pinFile, soPINFile, pinStore             string
	listen, dataDir, tlsCert, tlsKey, scheme string
	user, keyName, keyFile                   string

	folder        string         // of the configuration
	service       service.User   // as whom the daemon runs
	config        *config.Config // once it is written
	awaitsJournal bool           // a backup, or the first API key, is to begin it
	takesOver     bool           // the configuration was there, the PIN is given: so are token and key, and perhaps a backup
	answers       *bufio.Reader
	result        setupResult
	undo          []func() error // takes back what was chosen, should the token not be as it was said to be
}

// setupResult is what setup leaves behind.
type setupResult struct {
	Address       *appliance.Address `json:"address"`
	Configuration string             `json:"configuration"`
	APIKeyFile    string             `json:"apiKeyFile,omitempty"`
	APIKey        string             `json:"apiKey,omitempty"` // only where no file was wanted
	Made          []string           `json:"made"`             // files
	Kept          []string           `json:"kept"`
	Checks        []doctor.Finding   `json:"checks"`
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
	if doctor.Worst(s.result.Checks) == doctor.Fail {
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
	path, err := filepath.Abs(s.source.Path())
	if err != nil {
		return err
	}
	s.result.Configuration, s.folder = path, filepath.Dir(path)
	if s.service, err = s.findUser(); err != nil {
		return err
	}
	return s.ensureFolder(s.folder, 0o755, service.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())})
}

func (s *setup) findUser() (service.User, error) {
	name := s.user
	if name == "" && os.Geteuid() == 0 {
		name = "attestd"
	}
	if name != "" {
		u, err := user.Lookup(name)
		if err == nil {
			return service.FromOS(u)
		}
		if s.user != "" {
			return service.User{}, fmt.Errorf("--user: %w", err)
		}
		s.say("There is no user attestd, which the package makes: files will be root's, and the daemon must run as root.")
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return service.User{}, err
	}
	return service.FromOS(u)
}

func (s *setup) ensureFolder(path string, mode fs.FileMode, owner service.User) error {
	if files.Exists(path) {
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
func (s *setup) own(path string, mode fs.FileMode, owner service.User) error {
	if os.Geteuid() == 0 {
		if err := os.Lchown(path, int(owner.UID), int(owner.GID)); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// place makes a file in a folder of root's. One that is there keeps its owner and mode.
func (s *setup) place(path string, content []byte, mode fs.FileMode, owner service.User, what string) error {
	if stat, err := os.Stat(path); err == nil {
		was := stat.Sys().(*syscall.Stat_t)
		mode, owner = stat.Mode().Perm(), service.User{UID: was.Uid, GID: was.Gid}
	}
	if err := files.Write(path, content, 0o600); err != nil {
		return err
	}
	if err := s.own(path, mode, owner); err != nil {
		return err
	}
	s.made(path, what)
	return nil
}

func (s *setup) root() service.User {
	return service.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// configure leaves a configuration that names the token, unless there is one.
func (s *setup) configure(ctx context.Context) error {
	present, err := s.presentValues()
	if err != nil {
		return err
	}
	if _, configured := present["hsm.uri"]; configured {
		s.kept(s.result.Configuration, "names the token already; flags and questions about it are left out")
		if err := s.loadConfiguration(); err != nil {
			return err
		}
		return s.adoptPIN(ctx)
	}
	if err := s.ask(ctx); err != nil {
		return err
	}
	module, err := s.findModule()
	if err != nil {
		return err
	}
	dataDir := s.dataDir
	if dataDir == "" {
		dataDir = config.DefaultText("data_dir")
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
	if !files.Exists(s.result.Configuration) {
		return nil, nil
	}
	return config.ReadFile(s.result.Configuration)
}

func (s *setup) loadConfiguration() (err error) {
	if err := s.source.AdoptAgain(); err != nil {
		return err
	}
	s.config, err = s.source.Load(nil)
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

// isServiceFolder says whether this is the configuration of the service that systemd runs.
func (s *setup) isServiceFolder() bool {
	return os.Geteuid() == 0 && s.result.Configuration == config.DefaultFile
}

func isDirectory(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.IsDir()
}

// writeConfiguration writes what differs from the defaults, beneath what is in the file already.
func (s *setup) writeConfiguration(present map[string]any, dataDir string, uri hsm.URI) error {
	values := map[string]string{"hsm.uri": uri.String(), "data_dir": dataDir, "server.listen": s.listen,
		"server.tls.cert": s.tlsCert, "server.tls.key": s.tlsKey, "attestation.scheme": s.scheme}
	chosen := make(map[string]any)
	for name, value := range values {
		_, there := present[name]
		if !there && value != "" && (name == "hsm.uri" || value != config.DefaultText(name)) {
			chosen[name] = value
		}
	}
	for name := range chosen {
		section, _, _ := strings.Cut(name, ".")
		for other := range present {
			if strings.HasPrefix(other, section+".") {
				return fmt.Errorf("%s has a section %s already, without %s: add it there, then try again:\n  %s: %s",
					s.result.Configuration, section, name, strings.TrimPrefix(name, section+"."), config.YAMLValue(chosen[name]))
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
	fmt.Fprintf(&text, "# Written by 'attestd setup' on %s. What is not here has its default;\n# 'attestd config show' prints every value and what it is for.\n", time.Now().UTC().Format("2006-01-02"))
	if files.Exists(config.ReferenceFile) {
		fmt.Fprintf(&text, "# All of them, to copy from: %s\n", config.ReferenceFile)
	}
	text.WriteByte('\n')
	config.WriteYAML(&text, chosen)
	readers := service.User{UID: s.root().UID, GID: s.service.GID}
	return s.place(s.result.Configuration, text.Bytes(), 0o640, readers, "the configuration")
}

// validate refuses values that the daemon would refuse, before they are written.
func (s *setup) validate(chosen map[string]any) error {
	path := s.result.Configuration
	if !files.Exists(path) {
		path = os.DevNull
	}
	c, err := s.source.LoadFile(path, chosen)
	if err != nil {
		return err
	}
	return daemon.CheckReferences(c)
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

// makeAPIKey makes the first API key, unless there is one that works. It would begin a journal, in the place of one that
// a backup may have.
func (s *setup) makeAPIKey(ctx context.Context) (err error) {
	if s.awaitsJournal = s.takesOver && !files.Exists(filepath.Join(s.config.DataDir, archive.StoreFile)); s.awaitsJournal {
		return nil
	}
	o, err := s.backend(ctx)
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
	if file != "-" && files.Exists(file) {
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
	for _, f := range doctor.Examine(ctx, s.subject()) {
		if f.Check != "daemon" || f.State != doctor.Warn {
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
	return "attestd serve --config " + text.ShellWord(s.result.Configuration)
}

func (s *setup) tell(w io.Writer) {
	var troubles []doctor.Finding
	for _, f := range s.result.Checks {
		if f.State != doctor.OK {
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
	if doctor.Worst(s.result.Checks) == doctor.Fail {
		fmt.Fprintln(w, "\nMend what failed above, then run setup again.")
		return
	}
	if s.awaitsJournal {
		fmt.Fprintln(w, "\nThere is no journal yet, and no API key. If this machine takes over from another, put the newest backup in place:")
		fmt.Fprintln(w, "\n  attestd restore FILE")
		fmt.Fprintf(w, "\nElse make an API key: attestd key create --name %s\n", text.ShellWord(s.keyName))
	}
	fmt.Fprintf(w, "\nNext:\n\n  %s\n", s.result.Next)
}
