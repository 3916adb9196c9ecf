package hsm_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestStatusShowsAllAndNoPIN(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	inspected, err := hsm.Inspect(t.Context(), hsm.Options{URI: token.URI})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, newFaulty(t), hsm.Options{URI: token.URI})
	mustSign(t, s)
	running, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, status := range map[string]hsm.Status{"inspected": inspected, "running": running} {
		if !status.Ready || status.Module.Path != token.URI.ModulePath || status.Module.Manufacturer != "SoftHSM" ||
			status.Token.Label != token.URI.Token ||
			status.Token.Serial == "" || len(status.Token.Mechanisms) != 2 || status.Key.Label != "attestor" ||
			status.Key.ID != token.Key.ID ||
			status.Key.Curve != "secp256k1" || !status.Key.Sensitive || status.Key.Extractable || !status.Key.Sign ||
			*status.Key.Address != token.Key.Address {
			t.Errorf("%s: %+v", name, status)
		}
		pin, _ := os.ReadFile(token.PINFile)
		if text, err := json.Marshal(status); err != nil ||
			strings.Contains(string(text), strings.TrimSpace(string(pin))) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

func TestInspectTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	f := newFaulty(t)
	f.attribute = func(attribute uint, value []byte) ([]byte, error) {
		if attribute == pkcs11.CKA_EXTRACTABLE {
			return []byte{1}, nil
		}
		return value, nil
	}
	status, err := hsm.Inspect(t.Context(), hsm.Options{URI: token.URI}.Through(f.wrap))
	if err == nil || status.Ready || !status.Key.Extractable || status.Token.Label != token.URI.Token ||
		status.LastError != err.Error() {
		t.Errorf("%+v, %v", status, err)
	}
}
