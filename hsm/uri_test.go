package hsm_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/attestd/attestd/hsm"
)

func TestParseURIReadsAllAttributes(t *testing.T) {
	t.Parallel()
	slot := uint(7)
	for name, test := range map[string]struct {
		text string
		want hsm.URI
	}{
		"as in the documentation": {
			"pkcs11:token=attestd;object=attestor?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/attestd/pin",
			hsm.URI{Token: "attestd", Object: "attestor", ModulePath: "/usr/lib/softhsm/libsofthsm2.so",
				PINSource: "file:/etc/attestd/pin"},
		},
		"all": {
			"pkcs11:token=t;manufacturer=m;model=o;serial=s;object=k;id=%00%FFa;slot-id=7;type=private?module-path=/m&module-name=n&pin-source=/p",
			hsm.URI{Token: "t", Manufacturer: "m", Model: "o", Serial: "s", Object: "k", ID: []byte("\x00\xffa"),
				SlotID:     &slot,
				ModulePath: "/m", ModuleName: "n", PINSource: "/p"},
		},
		"percent-encoded": {"pkcs11:token=The%20token%3B%c3%a9", hsm.URI{Token: "The token;é"}},
		"a credential": {"pkcs11:token=t?pin-source=credential:pin",
			hsm.URI{Token: "t", PINSource: "credential:pin"}},
		"file with host":    {"pkcs11:?pin-source=file:///etc/pin", hsm.URI{PINSource: "file:///etc/pin"}},
		"nothing":           {"pkcs11:", hsm.URI{}},
		"only a query":      {"pkcs11:?module-name=softhsm2", hsm.URI{ModuleName: "softhsm2"}},
		"separators inside": {"pkcs11:object=a%26b?module-path=/a%26b", hsm.URI{Object: "a&b", ModulePath: "/a&b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := hsm.ParseURI(test.text)
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Fatalf("got %+v, %v; want %+v", got, err, test.want)
			}
			again, err := hsm.ParseURI(got.String())
			if err != nil || !reflect.DeepEqual(again, got) {
				t.Fatalf("%s does not come back: %+v, %v", got, again, err)
			}
		})
	}
}

func TestParseURIRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"another scheme":        {"http:token=a", "pkcs11:"},
		"an unknown name":       {"pkcs11:tokn=a", `"tokn"`},
		"a query name in path":  {"pkcs11:module-path=/a", `"module-path"`},
		"a path name in query":  {"pkcs11:?token=a", `"token"`},
		"a repetition":          {"pkcs11:token=a;token=b", "token is given twice"},
		"no value":              {"pkcs11:token=", "attribute token: is empty"},
		"no equals sign":        {"pkcs11:token", "lacks ="},
		"a stray separator":     {"pkcs11:token=a;", "lacks ="},
		"a half encoding":       {"pkcs11:token=%4", "attribute token"},
		"a wrong encoding":      {"pkcs11:token=%zz", "attribute token"},
		"a space":               {"pkcs11:token=a b", "percent-encoded"},
		"text not in UTF-8":     {"pkcs11:object=%ff", "attribute object"},
		"a NUL":                 {"pkcs11:object=%00", "attribute object"},
		"a slot in letters":     {"pkcs11:slot-id=one", "attribute slot-id"},
		"a public key":          {"pkcs11:type=public", "attribute type"},
		"a PIN":                 {"pkcs11:token=a?pin-value=31415926", "pin-source"},
		"a PIN in the path":     {"pkcs11:pin-value=31415926", "pin-source"},
		"a command":             {"pkcs11:?pin-source=|/bin/31415926", "not a command"},
		"an encoded command":    {"pkcs11:?pin-source=%7Ccat%2031415926", "not a command"},
		"a credential's path":   {"pkcs11:?pin-source=credential:../31415926", "without a slash"},
		"a nameless credential": {"pkcs11:?pin-source=credential:", "without a slash"},
		"a relative PIN file":   {"pkcs11:?pin-source=31415926", "absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := hsm.ParseURI(test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			if strings.Contains(err.Error(), "31415926") {
				t.Fatalf("the error shows the PIN: %v", err)
			}
		})
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add("pkcs11:token=attestd;object=attestor;id=%01%02?module-path=/usr/lib/x.so&pin-source=file:/etc/pin")
	f.Add("pkcs11:slot-id=1;type=private;serial=%41?module-name=softhsm2")
	f.Add("pkcs11:a=%%?&=;")
	f.Add("pkcs11:?pin-source=|x")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := hsm.ParseURI(text)
		if err != nil {
			return
		}
		again, err := hsm.ParseURI(u.String())
		if err != nil {
			t.Fatalf("%q gives %q, which is refused: %v", text, u, err)
		}
		if !reflect.DeepEqual(u, again) {
			t.Fatalf("%q gives %+v, and again %+v", text, u, again)
		}
	})
}

func TestCredentialIsAFileOfTheServicesFolder(t *testing.T) {
	u := hsm.URI{PINSource: "credential:pin"}
	t.Setenv(hsm.CredentialsVariable, "")
	if _, err := u.PINFile(); err == nil || !strings.Contains(err.Error(), "CREDENTIALS_DIRECTORY is not set") {
		t.Errorf("without a folder: %v", err)
	}
	t.Setenv(hsm.CredentialsVariable, "/run/credentials/attestd.service")
	if path, err := u.PINFile(); err != nil || path != "/run/credentials/attestd.service/pin" {
		t.Errorf("%q, %v", path, err)
	}
}

func ExampleParseURI() {
	u, err := hsm.ParseURI("pkcs11:token=attestd;object=attestor?module-name=softhsm2&pin-source=file:/etc/attestd/pin")
	fmt.Println(u.Token, u.Object, u.ModuleName, err)
	// Output: attestd attestor softhsm2 <nil>
}
