package archive

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// sealedLogKey is the name of the encrypted log key in an archive (age-encryption.org/v1).
const sealedLogKey = LogKeyFile + ".age"

// maxSealed is its maximum size in bytes. An encrypted key has about 400.
const maxSealed = 64 << 10

// ParseRecipient reads the public key of an age identity, as age-keygen prints it: age1….
func ParseRecipient(text string) (age.Recipient, error) {
	all, err := age.ParseRecipients(strings.NewReader(text))
	if err == nil && len(all) != 1 {
		err = errors.New("exactly one recipient is allowed")
	}
	if err != nil {
		return nil,
			fmt.Errorf("%q is not an age recipient, which begins with age1 (create one with age-keygen): %w", text, err)
	}
	return all[0], nil
}

// passphraseWork makes a try of a passphrase take a second and 256 MiB. It is age's default.
const passphraseWork = 18

// PassphraseRecipient returns the recipient for a passphrase. work is the base-2 logarithm of scrypt's cost; 0 means
// that a try takes a second and 256 MiB.
func PassphraseRecipient(passphrase []byte, work int) (age.Recipient, error) {
	to, err := age.NewScryptRecipient(string(passphrase))
	if err == nil {
		to.SetWorkFactor(cmp.Or(work, passphraseWork))
	}
	return to, err
}

// ReadIdentities reads a file of age-keygen.
func ReadIdentities(path string) ([]age.Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := age.ParseIdentities(f)
	if err != nil {
		return nil, fmt.Errorf("%s: not an identity file of age-keygen: %w", path, err)
	}
	return all, nil
}

// PassphraseIdentity returns the identity for a passphrase.
func PassphraseIdentity(passphrase []byte) (age.Identity, error) {
	return age.NewScryptIdentity(string(passphrase))
}

// seal encrypts the log key in a folder.
func seal(dir string, to age.Recipient) (sealed []byte, key journal.LogKey, err error) {
	path := filepath.Join(dir, LogKeyFile)
	var secret []byte
	err = asOwner(dir, func() error { // whose owner may have planted links
		secret, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return nil, key, fmt.Errorf("log key: %w", err)
	}
	if key, err = journal.ParseLogKey(string(secret)); err != nil {
		return nil, key, fmt.Errorf("%s: %w", path, err)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, to)
	if err != nil {
		return nil, key, fmt.Errorf("encrypt the log key: %w", err)
	}
	_, err = w.Write(bytes.TrimSpace(secret))
	err = errors.Join(err, w.Close()) // which writes the last chunk
	return b.Bytes(), key, err
}

// ErrSealed is returned by Restore for an encrypted log key without an identity that decrypts it.
var ErrSealed = errors.New("the backup's log key is encrypted, and data_dir does not have that key")

// Unseal does for the log key in scratch what Restore does, for callers that restore to another place than dir.
func (o RestoreOptions) Unseal(dir, scratch string, m Manifest) error {
	return asOwner(dir, func() error { return o.unseal(dir, scratch, m) })
}

// unseal puts the backup's log key into scratch as log.key. It takes the key in dir if that is the backup's, else it
// decrypts the one in scratch. If neither exists, or NewLogKey is set, scratch gets none.
func (o RestoreOptions) unseal(dir, scratch string, m Manifest) error {
	if o.NewLogKey {
		return nil
	}
	public, err := m.logKey()
	if err != nil {
		return err
	}
	place := filepath.Join(scratch, LogKeyFile)
	for _, name := range []string{LogKeyFile, retiredFile(public)} {
		secret, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if key, err := journal.ParseLogKey(string(secret)); err == nil && key.VerifierText == m.VerifierKey {
			return files.Write(place, secret, 0o600)
		}
	}
	if o.HSM != nil && o.HSM.PublicKey().Equal(public.PublicKey()) {
		return files.Write(place, []byte(m.VerifierKey+"\n"), 0o600)
	}
	sealed, err := os.ReadFile(filepath.Join(scratch, sealedLogKey))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(o.Identities) == 0:
		return ErrSealed
	}
	opened, err := age.Decrypt(bytes.NewReader(sealed), o.Identities...)
	if wrong := new(age.NoIdentityMatchError); errors.As(err, &wrong) {
		return errors.New("the backup's log key is encrypted for another identity or passphrase")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sealedLogKey, err)
	}
	secret, err := io.ReadAll(io.LimitReader(opened, maxSealed))
	if err != nil {
		return fmt.Errorf("%s: %w", sealedLogKey, err)
	}
	key, err := journal.ParseLogKey(string(secret))
	if err == nil && key.VerifierText != m.VerifierKey {
		err = fmt.Errorf("it is the key of %s, but the journal belongs to another log", journal.LogName(key.Verifier))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sealedLogKey, err)
	}
	return files.Write(place, append(secret, '\n'), 0o600)
}
