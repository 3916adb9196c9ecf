package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

// Bundle is the data that a new member needs from a member of the cluster. The operator carries it, sealed with a
// passphrase (age, age-encryption.org/v1), because the log key in it can sign checkpoints.
type Bundle struct {
	Format    int            `json:"format"` // 1
	Attestd   string         `json:"attestd"`
	Made      time.Time      `json:"made"`
	LogKey    string         `json:"logKey"`              // secret text of the log key
	Settings  map[string]any `json:"settings"`            // must be equal on all members
	Screening string         `json:"screening,omitempty"` // content of attestation.screening_list
	Policy    string         `json:"policy,omitempty"`    // content of attestation.policy
}

const (
	bundleFormat = 1
	maxBundle    = 16 << 20 // bytes; a screening list may be long

	// bundleLife limits the age of a bundle, so that it agrees with the cluster when a machine joins.
	bundleLife = 7 * 24 * time.Hour
)

// shared lists the settings that a bundle copies if they differ from their defaults.
func shared() []string {
	return []string{
		"store.url", "hsm.address", "attestation.scheme", "attestation.screening_list", "attestation.policy",
		"attestation.eip712.name", "attestation.eip712.version",
		"attestation.eip712.chain_id", "attestation.eip712.verifying_contract",
		"journal.origin", "journal.key", "journal.max_ahead",
		"limits.default_rate", "limits.anonymous_rate", "limits.graphql_rate", "limits.log_rate", "limits.error_rate",
		"limits.max_waiting",
	}
}

// NewBundle returns the bundle for a new member. It removes the password from store.url, unless withPassword is set.
func NewBundle(c *config.Config, version string, signer appliance.Address, withPassword bool,
	now time.Time) (b Bundle, err error) {
	if c.Store.URL == "" {
		return b,
			errors.New(
				"store.url is not set: a cluster needs a database; move the store to one first: attestd store init, then attestd store copy")
	}
	secret, err := os.ReadFile(filepath.Join(c.DataDir, archive.LogKeyFile))
	if err != nil {
		return b, fmt.Errorf("log key: %w", err)
	}
	key, err := journal.ParseLogKey(string(secret))
	if err != nil {
		return b, fmt.Errorf("log key: %w", err)
	}
	b = Bundle{Format: bundleFormat, Attestd: version, Made: now.UTC().Truncate(time.Second),
		LogKey: string(bytes.TrimSpace(secret)), Settings: make(map[string]any)}
	none := config.Source{File: os.DevNull}
	defaults, err := none.Load(nil)
	if err != nil {
		return b, err
	}
	values, usual := c.Values(), defaults.Values()
	for _, name := range shared() {
		if values[name] != usual[name] {
			b.Settings[name] = values[name]
		}
	}
	b.Settings["store.url"] = string(c.Store.URL)
	if !withPassword {
		b.Settings["store.url"] = string(c.Store.URL.WithoutPassword())
	}
	b.Settings["journal.origin"], b.Settings["hsm.address"] = key.Verifier.Name(), signer.String()
	if b.Screening, err = contentOf("attestation.screening_list", c.Attestation.ScreeningList); err != nil {
		return b, err
	}
	b.Policy, err = contentOf("attestation.policy", c.Attestation.Policy)
	return b, err
}

// contentOf returns the content of the file that a setting names; "" if path is empty.
func contentOf(setting, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", setting, err)
	}
	return string(content), nil
}

// Seal encrypts the bundle with a passphrase and writes it. work is that of archive.PassphraseRecipient.
func (b Bundle) Seal(w io.Writer, passphrase []byte, work int) error {
	to, err := archive.PassphraseRecipient(passphrase, work)
	if err != nil {
		return err
	}
	content, err := json.Marshal(b)
	if err != nil {
		return err
	}
	armored := armor.NewWriter(w)
	sealed, err := age.Encrypt(armored, to)
	if err != nil {
		return err
	}
	_, err = sealed.Write(content)
	return errors.Join(err, sealed.Close(), armored.Close())
}

// OpenBundle decrypts a sealed bundle, and refuses it after its lifetime.
func OpenBundle(r io.Reader, passphrase []byte, now time.Time) (b Bundle, err error) {
	by, err := age.NewScryptIdentity(string(passphrase))
	if err != nil {
		return b, err
	}
	opened, err := age.Decrypt(armor.NewReader(io.LimitReader(r, 2*maxBundle)), by)
	if wrong := new(age.NoIdentityMatchError); errors.As(err, &wrong) {
		return b, errors.New("the passphrase is wrong")
	}
	if err != nil {
		return b, damagedBundle(err)
	}
	content, err := io.ReadAll(io.LimitReader(opened, maxBundle+1))
	if err == nil && len(content) > maxBundle {
		err = errors.New("the bundle is too large")
	}
	if err != nil {
		return b, damagedBundle(err)
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	if err := d.Decode(&b); err != nil {
		return b, damagedBundle(err)
	}
	return b, b.check(now)
}

func damagedBundle(err error) error {
	return fmt.Errorf("not a complete bundle of 'attestd setup --bundle': copy it again: %w", err)
}

func (b Bundle) check(now time.Time) error {
	const again = "create a new bundle on a member: attestd setup --bundle FILE"
	switch age := now.Sub(b.Made); {
	case b.Format != bundleFormat:
		return fmt.Errorf(
			"the bundle has format %d, this attestd reads format %d: install the same version on both machines, then %s", b.Format, bundleFormat, again)
	case age > bundleLife:
		return fmt.Errorf("the bundle of %s has expired after %d days: %s", text.Time(b.Made),
			int(bundleLife.Hours()/24), again)
	case age < -time.Hour:
		return fmt.Errorf(
			"the bundle's time %s is in the future: set the clock of this machine, or of the member that created the bundle", text.Time(b.Made))
	}
	if _, err := journal.ParseLogKey(b.LogKey); err != nil {
		return fmt.Errorf("the bundle's log key: %w", err)
	}
	return nil
}
