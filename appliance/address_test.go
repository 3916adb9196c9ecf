package appliance_test

import (
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
)

// The checksummed addresses are the test vectors of EIP-55.
func TestAddressesWithAValidChecksumOrOneCaseAreAccepted(t *testing.T) {
	for _, checksummed := range []string{
		"0x52908400098527886E0F7030069857D2E4169EE7", // all caps
		"0x8617E340B3D01FA5F11F306F4090FD50E238070D",
		"0xde709f2102306220921060314715629080e2fb77", // all lower
		"0x27b1fdb04752bbc536007a920d24acb045561c26",
		"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", // normal
		"0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
		"0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
		"0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
	} {
		digits := checksummed[2:]
		for _, form := range []string{checksummed, "0x" + strings.ToLower(digits), "0x" + strings.ToUpper(digits)} {
			a, err := appliance.ParseAddress(form)
			if err != nil {
				t.Errorf("%s: %v", form, err)
			}
			if a.String() != checksummed {
				t.Errorf("%s: shown as %s, want %s", form, a, checksummed)
			}
		}
	}
}

func TestEveryFormThatIsNotAnAddressIsRefusedWithItsCode(t *testing.T) {
	const good = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	for name, c := range map[string]struct {
		text string
		code appliance.Code
	}{
		"empty":                {"", appliance.CodeInvalidAddress},
		"prefix only":          {"0x", appliance.CodeInvalidAddress},
		"no prefix":            {good[2:], appliance.CodeInvalidAddress},
		"upper-case prefix":    {"0X" + good[2:], appliance.CodeInvalidAddress},
		"one digit short":      {good[:41], appliance.CodeInvalidAddress},
		"one digit long":       {good + "0", appliance.CodeInvalidAddress},
		"not hex":              {good[:41] + "g", appliance.CodeInvalidAddress},
		"space before":         {" " + good, appliance.CodeInvalidAddress},
		"newline after":        {good + "\n", appliance.CodeInvalidAddress},
		"multi-byte letters":   {"0x" + strings.Repeat("é", 20), appliance.CodeInvalidAddress},
		"zero":                 {"0x" + strings.Repeat("0", 40), appliance.CodeZeroAddress},
		"one case is changed":  {"0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", appliance.CodeInvalidChecksum},
		"one digit is changed": {"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAe1", appliance.CodeInvalidChecksum},
	} {
		if _, err := appliance.ParseAddress(c.text); appliance.CodeOf(err) != c.code {
			t.Errorf("%s: got %v, want %s", name, err, c.code)
		}
	}
}

func FuzzParsedAddressesReadBackTheSame(f *testing.F) {
	f.Add("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed")
	f.Add("0x52908400098527886E0F7030069857D2E4169EE7")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := appliance.ParseAddress(s)
		if err != nil {
			return
		}
		if !strings.EqualFold(a.String(), s) {
			t.Fatalf("%q became %s", s, a)
		}
		if again, err := appliance.ParseAddress(a.String()); err != nil || again != a {
			t.Fatalf("%s is not read back: %v", a, err)
		}
	})
}
