package daemon

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/worker"
)

// LogHSM is a journal.LogSigner with the key that journal.key names. A nil LogHSM means that the log key is in
// log.key.
type LogHSM struct {
	worker  *worker.Signer
	timeout time.Duration // of a signature
}

// OpenLogHSM opens the log key in the HSM. It returns nil if journal.key is empty. A command of root starts the worker
// as the owner of data_dir, and decrypts the PIN if it is a credential of the service.
func OpenLogHSM(c *config.Config, logger *slog.Logger, logins *worker.Logins) (*LogHSM, error) {
	if c.Journal.Key == "" {
		return nil, nil
	}
	uri, err := parseLogKeyURI(c)
	if err != nil {
		return nil, err
	}
	options := HSMOptions(c, uri, nil)
	options.Sessions, options.Algorithm = 1, hsm.Ed25519
	o := worker.Options{HSM: options, CallTimeout: c.HSMCallTimeout(), Logins: logins, Sandbox: sandboxRules(c),
		Logger: logger}
	if logger != nil {
		o.Logger = logger.With("key", "journal.key")
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 && !owner.IsRoot() {
		o.User = &syscall.Credential{Uid: owner.UID, Gid: owner.GID, Groups: owner.Groups}
	}
	if name := uri.Credential(); name != "" && os.Getenv(hsm.CredentialsVariable) == "" && os.Geteuid() == 0 {
		o.ReadPIN = func() (*hsm.PIN, error) { return decryptPIN(name) }
	}
	ctx, cancel := context.WithTimeout(context.Background(), hsmStartTimeout)
	defer cancel()
	opened, err := worker.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("journal.key: %w", WithRemedy(err))
	}
	return &LogHSM{worker: opened, timeout: c.Server.RequestTimeout}, nil
}

// parseLogKeyURI reads journal.key.
func parseLogKeyURI(c *config.Config) (hsm.URI, error) {
	uri, err := hsm.ParseURI(c.Journal.Key)
	if err == nil && uri.Object == "" && len(uri.ID) == 0 {
		err = errors.New("the URI has no key: add object=LABEL")
	}
	if err != nil {
		return uri, fmt.Errorf("journal.key: %w", err)
	}
	return uri, nil
}

// decryptTimeout bounds systemd-creds, which may have to ask a TPM.
const decryptTimeout = 30 * time.Second

// decryptPIN decrypts a credential of the service. The PIN is never written to a file.
func decryptPIN(name string) (*hsm.PIN, error) {
	ctx, cancel := context.WithTimeout(context.Background(), decryptTimeout)
	defer cancel()
	pin, err := service.DecryptedCredential(ctx, name)
	if err != nil {
		return nil, err
	}
	defer clear(pin)
	return hsm.LockPIN(bytes.NewReader(pin))
}

// Signer returns nil for a nil LogHSM, as LogKey.SignedBy expects.
func (l *LogHSM) Signer() journal.LogSigner {
	if l == nil {
		return nil
	}
	return l
}

// PublicKey implements journal.LogSigner.
func (l *LogHSM) PublicKey() ed25519.PublicKey { return l.worker.PublicKey() }

// Sign implements journal.LogSigner. It waits at most for server.request_timeout.
func (l *LogHSM) Sign(message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	return l.worker.SignMessage(ctx, message)
}

// Close ends the worker.
func (l *LogHSM) Close() error {
	if l == nil {
		return nil
	}
	return l.worker.Close()
}

// checkLogKey compares log.key with journal.key.
func (l *LogHSM) checkLogKey(key journal.LogKey) error {
	const rotate = "attestd log rotate-key --reason REASON (with attestd stopped)"
	switch {
	case l == nil && !key.IsFile():
		return fmt.Errorf(
			"%s has only the verifier key %s, whose secret is in an HSM: set journal.key to that key, or continue the log with a key in a file: %s",
			archive.LogKeyFile, key.VerifierText, rotate)
	case l != nil && key.IsFile():
		return fmt.Errorf(
			"%s holds a secret key, but journal.key names a key in an HSM: continue the log with that key: %s; or remove journal.key",
			archive.LogKeyFile, rotate)
	case l != nil && !key.PublicKey().Equal(l.PublicKey()):
		return fmt.Errorf(
			"journal.key names another key than %s, which has %s: correct journal.key, or continue the log with the new key: %s",
			archive.LogKeyFile, key.VerifierText, rotate)
	}
	return nil
}

// signedByHSM is a journal whose checkpoints the HSM signs. It is ready only while the HSM is.
type signedByHSM struct {
	audit.Journal
	hsm *LogHSM
}

// Ready implements journal.Journal.
func (j signedByHSM) Ready(ctx context.Context) error {
	if err := j.hsm.worker.Ready(ctx); err != nil {
		unready := appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available")
		unready.RetryAfter = time.Second
		return unready.Because(fmt.Errorf("%w: %w", journal.ErrUnsigned, err))
	}
	return j.Journal.Ready(ctx)
}
