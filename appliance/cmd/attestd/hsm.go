package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm"
)

// isWrongPIN reports whether the token refused the PIN.
func isWrongPIN(err error) bool { return errors.Is(err, hsm.ErrPIN) }

func newHSM(a *app) *cobra.Command {
	return group("hsm", "The HSM: init, status, keygen, bench",
		"The HSM is any PKCS#11 module. hsm.uri in the configuration names the module, the token, the key and the file\nwith the PIN. If hsm.uris or hsm.keys names several tokens, choose one with --token.",
		newHSMInit(a), newHSMStatus(a), newHSMKeygen(a), newHSMBench(a), newHSMInspect(a))
}

// withToken runs do for a command that opens the configured HSM itself. args repeat the command line, for a child
// process.
func (a *app) withToken(cmd *cobra.Command, which string, args []string, do func(hsm.Options) error) error {
	c, uri, args, err := a.chooseToken(which, args)
	if err != nil {
		return err
	}
	if done, err := a.atToken(cmd.Context(), c, uri, nil, args...); done || err != nil {
		return err
	}
	if err := forbidDumps(); err != nil {
		return err
	}
	return do(daemon.HSMOptions(c, uri, newLogger(c, a.err)))
}

func newHSMInit(a *app) *cobra.Command {
	var soPINFile, which string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Initialise the token and generate the attestor key, unless they exist",
		Long: `Initialise the token of hsm.uri, and generate a secp256k1 key in it, sensitive and not extractable. A token or
key that exists is kept. The user PIN is read from pin-source. A new token gets the security officer's PIN
from --so-pin-file; without the flag, a random PIN is generated and shown once.

An existing token is never initialised again, which would destroy its keys. If hsm.uris names several tokens,
generate the key in one of them and copy it to the others with the HSM vendor's tools: each generated key is
different.`,
		Example: "  attestd hsm init\n  attestd hsm init --so-pin-file /root/so-pin",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, uri, args, err := a.chooseToken(which, []string{"hsm", "init"})
			if err != nil {
				return err
			}
			soPIN, made, err := a.soPIN(soPINFile)
			if err != nil {
				return err
			}
			if !made {
				args = append(args, "--so-pin-file", "-")
			}
			if done, err := a.atToken(cmd.Context(), c, uri, bytes.NewReader(soPIN), args...); done || err != nil {
				return err
			}
			if err := forbidDumps(); err != nil {
				return err
			}
			result, err := hsm.Init(cmd.Context(), hsm.InitOptions{URI: uri, SOPIN: soPIN, Logger: newLogger(c, a.err)})
			if err != nil {
				return err
			}
			if made && result.TokenCreated {
				a.say("The security officer's PIN of the new token is %s. Store it separately; it is not shown again.",
					soPIN)
			}
			if result.Created && len(c.HSM.URIs) > 1 {
				a.say(
					"The other tokens lack this key. Copy it to them with the HSM vendor's tools, then check all tokens: attestd doctor")
			}
			return a.print(result, func(w io.Writer) { writeInit(w, result) })
		},
	}
	cmd.Flags().StringVar(&soPINFile, "so-pin-file", "",
		"file with the security officer's PIN for a new token; - for standard input")
	tokenFlag(cmd, &which)
	return cmd
}

// maxPIN bounds the size of a PIN file, in bytes.
const maxPIN = 4 << 10

// readPIN reads a PIN from a file, or from standard input for "-". It removes a newline at the end.
func (a *app) readPIN(file string) ([]byte, error) {
	pin, err := a.readSmall(file, maxPIN)
	return bytes.TrimRight(pin, "\r\n"), err
}

// soPIN reads the security officer's PIN. Without a file, it generates one of 16 hexadecimal digits.
func (a *app) soPIN(file string) (pin []byte, made bool, err error) {
	if file != "" {
		pin, err = a.readPIN(file)
		return pin, false, err
	}
	b := make([]byte, 8)
	rand.Read(b)
	return []byte(hex.EncodeToString(b)), true, nil
}

func newHSMStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show module, token, mechanisms, key, address, sessions",
		Example: "  attestd hsm status\n  attestd hsm status --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			status, err := doctor.DaemonHSM(cmd.Context(), c)
			if err == nil {
				return a.print(status, func(w io.Writer) { writeStatus(w, status) })
			}
			if !errors.Is(err, client.ErrNotRunning) {
				return err
			}
			if len(c.TokenURIs()) > 1 || len(c.HSM.Keys) > 0 {
				status, err := a.inspectEach(cmd.Context(), c)
				if err != nil {
					return err
				}
				return a.print(status, func(w io.Writer) { writeStatus(w, status) })
			}
			return a.withToken(cmd, "", []string{"hsm", "status"}, func(opts hsm.Options) error {
				opts.Logger = nil
				status, err := hsm.Inspect(cmd.Context(), opts)
				if err != nil {
					return daemon.WithRemedy(err)
				}
				return a.print(status, func(w io.Writer) { writeStatus(w, status) })
			})
		},
	}
}

// newHSMInspect is a child process of doctor. An HSM library that crashes takes its process with it, so doctor loads
// none itself.
func newHSMInspect(a *app) *cobra.Command {
	var which string
	cmd := &cobra.Command{
		Use:    "inspect",
		Short:  "Print the state of the token as JSON, up to the first fault",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withToken(cmd, which, []string{"hsm", "inspect"}, func(opts hsm.Options) error {
				opts.Logger = nil
				status, err := hsm.Inspect(cmd.Context(), opts)
				if err != nil {
					status.LastError = err.Error()
				}
				return a.printJSON(doctor.Inspection{
					Status: status, WrongPIN: isWrongPIN(err), NotFound: errors.Is(err, hsm.ErrNotFound),
					NoToken:   errors.Is(err, hsm.ErrNoToken),
					OtherKeys: errors.Is(err, hsm.ErrOtherKeys),
				})
			})
		},
	}
	tokenFlag(cmd, &which)
	return cmd
}

func newHSMKeygen(a *app) *cobra.Command {
	var label, which, algorithm string
	cmd := &cobra.Command{
		Use:   "keygen --label LABEL",
		Short: "Generate another key in the token: an attestor key, or a log key",
		Long: `Generate another secp256k1 key in the token of hsm.uri, sensitive and not extractable, with an unused label.
The new key does not sign yet: the command prints the setting hsm.keys with which it signs, next to the
existing key, for the API keys bound to it. docs/rotation.md describes the rotation from one key to the next.

With --algorithm ed25519 the key is a log key, which signs the journal's checkpoints (docs/journal.md), and
the command prints the setting journal.key.`,
		Example: "  attestd hsm keygen --label attestor-2027\n  attestd hsm keygen --label log --algorithm ed25519",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if label == "" {
				return usagef(cmd, "--label is required")
			}
			if algorithm != "secp256k1" && algorithm != string(hsm.Ed25519) {
				return usagef(cmd, "--algorithm must be secp256k1 or ed25519, not %q", algorithm)
			}
			return a.withToken(cmd, which, []string{"hsm", "keygen", "--label", label, "--algorithm", algorithm},
				func(opts hsm.Options) error {
					if algorithm == string(hsm.Ed25519) {
						opts.Algorithm = hsm.Ed25519
					}
					key, err := hsm.Keygen(cmd.Context(), opts, label)
					if err != nil {
						return err
					}
					if opts.Algorithm == hsm.Ed25519 {
						opts.URI.Object, opts.URI.ID = label, nil
						return a.print(key, func(w io.Writer) { writeNewLogKey(w, opts.URI, key) })
					}
					return a.print(key, func(w io.Writer) { writeNewKey(w, a.keysWith(opts.URI, key), key) })
				})
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "label of the new key (required)")
	cmd.Flags().StringVar(&algorithm, "algorithm", "secp256k1", "secp256k1 for an attestor key, ed25519 for a log key")
	tokenFlag(cmd, &which)
	return cmd
}

func newHSMBench(a *app) *cobra.Command {
	var which string
	var sessions []int
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the token's signatures per second",
		Long: `Measure raw C_Sign calls per second for each number of sessions: the limit that the token sets. The signatures
are of random bytes with a prefix that no attestation has, and are discarded.`,
		Example: "  attestd hsm bench --sessions 1,2,4,8 --duration 5s",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if duration <= 0 || slices.ContainsFunc(sessions, func(n int) bool { return n < 1 }) {
				return usagef(cmd, "--sessions and --duration must be more than zero")
			}
			args := []string{"hsm", "bench", "--duration", duration.String(), "--sessions", join(sessions)}
			return a.withToken(cmd, which, args, func(opts hsm.Options) error {
				results, err := hsm.Bench(cmd.Context(), opts, sessions, duration)
				if err != nil {
					return err
				}
				return a.print(viewBench(results), func(w io.Writer) { writeBench(w, results) })
			})
		},
	}
	cmd.Flags().IntSliceVar(&sessions, "sessions", []int{1, 2, 4, 8}, "numbers of sessions to measure")
	cmd.Flags().DurationVar(&duration, "duration", 3*time.Second, "duration of each measurement")
	tokenFlag(cmd, &which)
	return cmd
}

func writeInit(w io.Writer, r hsm.InitResult) {
	state := func(made bool) string {
		if made {
			return "made"
		}
		return "was there"
	}
	fmt.Fprintf(w, "Token %q (serial %s): %s.\n", r.Token, r.Serial, state(r.TokenCreated))
	fmt.Fprintf(w, "Key %q: %s.\n\n", r.Key.Label, state(r.Created))
	writeKey(w, r.Key)
}

func writeKey(w io.Writer, k hsm.KeyInfo) {
	fields(w, [][2]string{{"key", k.Label}, {"id", k.ID}, {"public key", k.PublicKey}, {"address", k.Address.String()}})
	fmt.Fprintln(w, "\nSet this address as attestor in the contract on chain.")
}

// writeNewLogKey shows a log key and the setting that names it.
func writeNewLogKey(w io.Writer, uri hsm.URI, k hsm.KeyInfo) {
	fields(w, [][2]string{{"key", k.Label}, {"id", k.ID}, {"public key", k.PublicKey}})
	fmt.Fprintf(w, "\nTo sign checkpoints with it, add to the configuration:\n\njournal:\n  key: %q\n\n"+
		"Before the first start, no further step is needed. Otherwise stop attestd and run: attestd log rotate-key --reason REASON\n", uri)
}

// writeNewKey shows an additional attestor key and the settings that name all keys.
func writeNewKey(w io.Writer, keys []config.AttestorKey, k hsm.KeyInfo) {
	fields(w, [][2]string{{"key", k.Label}, {"id", k.ID}, {"public key", k.PublicKey}, {"address", k.Address.String()}})
	fmt.Fprint(w,
		"\nTo sign with both keys, replace uri, uris and address under hsm with these lines, then run attestd reload:\n\n")
	config.WriteKeys(w, keys)
}

// keysWith returns the configured attestor keys, and appends the new one of the given token.
func (a *app) keysWith(token hsm.URI, made hsm.KeyInfo) (keys []config.AttestorKey) {
	c, err := a.config(nil)
	if err != nil {
		return nil
	}
	for i, k := range c.AttestorKeys() {
		if k.Name == "" { // the only key of a configuration without hsm.keys
			uri, err := hsm.ParseURI(c.TokenURIs()[i])
			if k.Name = uri.Object; err != nil || !appliance.ValidAttestorKeyName(k.Name) || k.Name == made.Label {
				k.Name = "attestor-before"
			}
			k.Address = cmp.Or(k.Address, "0x…")
		}
		keys = append(keys, k)
	}
	token.Object, token.ID = made.Label, nil
	name := made.Label
	if !appliance.ValidAttestorKeyName(name) {
		name = "NAME"
	}
	return append(keys, config.AttestorKey{Name: name, State: attest.AttestorKeyActive, URI: token.String(),
		Address: made.Address.String()})
}

func writeStatus(w io.Writer, s hsm.Status) {
	if len(s.Keys) > 0 {
		writeKeys(w, s.Keys)
		return
	}
	if len(s.Tokens) > 0 {
		writeTokens(w, s)
		return
	}
	address := ""
	if s.Key.Address != nil {
		address = s.Key.Address.String()
	}
	yes := map[bool]string{true: "yes", false: "no"}
	fields(w, append([][2]string{
		{"ready", yes[s.Ready]},
		{"module", s.Module.Path},
		{"", s.Module.Description + " " + s.Module.Version + " (" + s.Module.Manufacturer + ", PKCS#11 " +
			s.Module.Cryptoki + ")"},
		{"token", fmt.Sprintf("%s (serial %s)", s.Token.Label, s.Token.Serial)},
		{"", fmt.Sprintf("%s %s, slot %d", s.Token.Manufacturer, s.Token.Model, s.Token.Slot)},
		{"PIN", pinState(s.Token)},
		{"mechanisms", strings.Join(s.Token.Mechanisms, ", ")},
		{"key", fmt.Sprintf("%s (id %s, %s)", s.Key.Label, orDash(s.Key.ID), s.Key.Curve)},
		{"key policy", fmt.Sprintf("sensitive %s, extractable %s, may sign %s", yes[s.Key.Sensitive],
			yes[s.Key.Extractable], yes[s.Key.Sign])},
		{"address", address},
		{"sessions", sessionsShown(s.Session)},
		{"worker", workerState(s)},
		{"signatures",
			fmt.Sprintf("%s made, %s wrong and withheld, %s repairs", text.Count(s.Signatures),
				text.Count(s.WrongSignatures), text.Count(s.Repairs))},
	}, told("last error", s.LastError+" "+text.Time(s.LastErrorTime))...))
}

// workerState is empty if this process opened the token itself.
func workerState(s hsm.Status) string {
	if s.Worker == 0 {
		return ""
	}
	return fmt.Sprintf("process %d, %d restarts", s.Worker, s.Restarts)
}

func pinState(t hsm.TokenStatus) string {
	switch {
	case t.PINLocked:
		return "LOCKED: the security officer must set a new PIN"
	case t.PINFinalTry:
		return "ONE TRY LEFT: one more wrong PIN locks the token"
	case t.PINCountLow:
		return "a wrong PIN was tried since the last login"
	}
	return "good"
}

// sessionsShown describes the number of open sessions and its limits.
func sessionsShown(s hsm.SessionStatus) string {
	shown := fmt.Sprintf("%d in use, %d open, at most %d", s.InUse, s.Open, s.Most)
	if s.Auto {
		shown += ", the number that the HSM can use"
	}
	if s.Max > 0 {
		shown += fmt.Sprintf("; the token allows %d", s.Max)
	}
	return shown
}

// benchView is the JSON form of hsm.BenchResult.
type benchView struct {
	Sessions   int     `json:"sessions"`
	Signatures int     `json:"signatures"`
	PerSecond  float64 `json:"perSecond"`
	CPUSeconds float64 `json:"cpuSeconds"` // per signature, as are P50 and P99
	P50Seconds float64 `json:"p50Seconds"`
	P99Seconds float64 `json:"p99Seconds"`
}

func viewBench(results []hsm.BenchResult) []benchView {
	views := make([]benchView, len(results))
	for i, r := range results {
		views[i] = benchView{r.Sessions, r.Signatures, r.PerSecond, r.CPUMicros / 1e6, r.P50.Seconds(), r.P99.Seconds()}
	}
	return views
}

func writeBench(w io.Writer, results []hsm.BenchResult) {
	rows := make([][]string, len(results))
	for i, r := range results {
		rows[i] = []string{fmt.Sprint(r.Sessions), text.Decimal(r.PerSecond, 0), fmt.Sprintf("%.0f µs",
			r.CPUMicros), r.P50.Round(time.Microsecond).String(), r.P99.Round(time.Microsecond).String()}
	}
	table(w, "SESSIONS\tSIGNATURES/S\tCPU EACH\tMEDIAN\tP99", rows)
}

// lastOf returns the last n bytes of a text.
func lastOf(s string, n int) string { return s[max(0, len(s)-n):] }
