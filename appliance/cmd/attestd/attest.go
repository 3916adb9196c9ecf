package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/text"
)

func newAttest(a *app) *cobra.Command {
	var unspendable, beneficiary, url, keyFile, idempotencyKey string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "attest --unspendable ADDRESS --beneficiary ADDRESS",
		Short: "Request an attestation from the appliance and print its JSON",
		Long: `Request an attestation through the HTTP API, as an integrator's program does, and print the JSON of the
answer. The output includes the input of 'attestd verify': the two addresses, the digest scheme and, for
EIP-712, the domain.

The token of the API key is read from --api-key-file, or $ATTESTD_API_KEY, or the file api-key in the folder
of the configuration, in this order. 'attestd setup' writes /etc/attestd/api-key.`,
		Example: `  attestd attest --unspendable 0x…  --beneficiary 0x… | attestd verify -
  attestd attest --unspendable 0x…  --beneficiary 0x… --url https://attest.example.com --api-key-file payments.key`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef(cmd, "unexpected argument %q: give the addresses with --unspendable and --beneficiary",
					args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef(cmd, "--timeout must be more than zero")
			}
			req, err := parsePair(unspendable, beneficiary)
			if err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			c, err := a.attestClient(url, keyFile, timeout)
			if err != nil {
				return err
			}
			idempotencyKey = cmp.Or(idempotencyKey, uuid.NewString())
			attestation, err := c.Attest(cmd.Context(), req, client.AttestOptions{IdempotencyKey: idempotencyKey})
			if err != nil {
				return interrupted(cmd.Context(), fmt.Errorf("attest: %w", err),
					"the attestation may exist: to get the same one, repeat the command with --idempotency-key %s",
					text.ShellWord(idempotencyKey))
			}
			return a.printJSON(a.verifiable(cmd.Context(), c, req, attestation))
		},
	}
	f := cmd.Flags()
	f.StringVar(&unspendable, "unspendable", "", "the unspendable address (required)")
	f.StringVar(&beneficiary, "beneficiary", "", "the beneficiary's address (required)")
	f.StringVar(&url, "url", "", "address of the API (default: $ATTESTD_URL, or server.listen of the configuration)")
	f.StringVar(&keyFile, "api-key-file", "", "file with the API key's token; - for standard input")
	f.StringVar(&idempotencyKey, "idempotency-key", "",
		"a repeated request with the same key gets the same attestation (default: random)")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "time limit, including retries")
	return cmd
}

// attested is an attestation with the values that 'attestd verify' needs. A journal record has the same members.
type attested struct {
	appliance.Attestation
	appliance.Request
	Scheme appliance.SchemeName    `json:"scheme,omitempty"`
	Domain *appliance.EIP712Domain `json:"domain,omitempty"`
}

const askScheme = 5 * time.Second // after this time, the attestation is printed without its scheme

// verifiable adds the digest scheme, which it asks of the appliance. If that fails, it warns and leaves the scheme out:
// the attestation exists, and the caller must get it.
func (a *app) verifiable(ctx context.Context, c *client.Client, req appliance.Request,
	made appliance.Attestation) attested {
	ctx, cancel := context.WithTimeout(ctx, askScheme)
	defer cancel()
	answer := attested{Attestation: made, Request: req}
	attestor, err := c.Attestor(ctx)
	if err != nil {
		a.say("The output omits the digest scheme, which is unknown: %v", err)
		return answer
	}
	scheme, err := appliance.NewScheme(attestor.Scheme, attestor.Domain)
	switch {
	case err != nil:
		a.say("The output omits the digest scheme: %v", err)
	case scheme.Digest(req) != made.Hash: // the attestation is older than the present scheme, and was repeated
		a.say(
			"The output omits the digest scheme: the hash is not %s of the two addresses, the appliance's current scheme.", scheme.Name)
	default:
		answer.Scheme, answer.Domain = scheme.Name, scheme.Domain
	}
	return answer
}

// parsePair reads the two addresses of --unspendable and --beneficiary.
func parsePair(unspendable, beneficiary string) (req appliance.Request, err error) {
	if unspendable == "" || beneficiary == "" {
		return req, errors.New("--unspendable and --beneficiary are required")
	}
	if req.UnspendableAddress, err = appliance.ParseAddress(unspendable); err != nil {
		return req, fmt.Errorf("--unspendable %w", err)
	}
	if req.Beneficiary, err = appliance.ParseAddress(beneficiary); err != nil {
		return req, fmt.Errorf("--beneficiary %w", err)
	}
	return req, nil
}

func (a *app) attestClient(url, keyFile string, timeout time.Duration) (*client.Client, error) {
	token, err := a.apiKey(keyFile)
	if err != nil {
		return nil, err
	}
	if url == "" {
		url = a.source.Getenv("ATTESTD_URL")
	}
	if url == "" {
		c, err := a.config(nil)
		if err != nil {
			return nil, err
		}
		url = listenURL(c)
	}
	return client.New(url, token, client.Options{Timeout: timeout})
}

// listenURL is the address at which a client on this machine reaches the API.
func listenURL(c *config.Config) string {
	scheme := "http"
	if c.Server.TLS.Cert != "" {
		scheme = "https"
	}
	host, port, _ := config.SplitPort(c.Server.Listen)
	if host == "" || host == "0.0.0.0" || host == "[::]" {
		host = "127.0.0.1"
	}
	return scheme + "://" + host + ":" + port
}

// maxToken bounds the size of a token file, in bytes. Real tokens have 89.
const maxToken = 4 << 10

// apiKey returns the API key's token: from keyFile, or $ATTESTD_API_KEY, or the file api-key in the
// configuration's folder.
func (a *app) apiKey(keyFile string) (string, error) {
	if keyFile == "" {
		if token := a.source.Getenv("ATTESTD_API_KEY"); token != "" {
			return token, nil
		}
		keyFile = filepath.Join(filepath.Dir(a.source.Path()), "api-key")
		if _, err := os.Stat(keyFile); errors.Is(err, fs.ErrNotExist) {
			return "",
				fmt.Errorf(
					"no API key: give --api-key-file FILE or set ATTESTD_API_KEY (%s does not exist); create a key with: attestd key create --name NAME", keyFile)
		}
	}
	text, err := a.readSmall(keyFile, maxToken)
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = fmt.Errorf("%s is empty: it must contain an API key's token", keyFile)
	}
	return token, err
}
