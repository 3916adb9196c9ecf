package hsm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// URI names a module, a token and a key (RFC 7512). An empty field matches anything.
type URI struct {
	Token        string // the token's label
	Manufacturer string // the token's manufacturer
	Model        string
	Serial       string
	Object       string // CKA_LABEL of the key
	ID           []byte // CKA_ID of the key
	SlotID       *uint

	ModulePath string // a file, or the folder of ModuleName
	ModuleName string // with or without "lib" and ".so"; searched for in the usual folders
	PINSource  string // an absolute path, a file: URI or credential:NAME
}

const uriScheme = "pkcs11:"

// ParseURI parses a pkcs11 URI. It rejects attributes that are unknown, empty or given twice, because a URI with a
// mistyped attribute would match more keys than it should. It rejects pin-value, because a PIN in a URI would get into
// process lists, logs and backups.
func ParseURI(s string) (URI, error) {
	rest, found := strings.CutPrefix(s, uriScheme)
	if !found {
		return URI{}, fmt.Errorf("pkcs11 URI: must start with %q", uriScheme)
	}
	path, query, _ := strings.Cut(rest, "?")
	var u URI
	seen := make(map[string]bool)
	for _, part := range []struct{ text, separator, where string }{{path, ";", "path"}, {query, "&", "query"}} {
		if part.text == "" {
			continue
		}
		for _, attribute := range strings.Split(part.text, part.separator) {
			if err := u.parseAttribute(attribute, part.where, seen); err != nil {
				return URI{}, fmt.Errorf("pkcs11 URI: %w", err)
			}
		}
	}
	return u, nil
}

// parseAttribute never repeats a value in its errors: it may be a misplaced PIN.
func (u *URI) parseAttribute(attribute, where string, seen map[string]bool) error {
	name, raw, found := strings.Cut(attribute, "=")
	if !found {
		return fmt.Errorf("an attribute of the %s lacks =", where)
	}
	if name == "pin-value" {
		return errors.New("pin-value is not allowed: the configuration, logs or " +
			"process list would reveal the PIN; put it into a file and set pin-source=file:/path")
	}
	set := u.setter(name, where)
	if set == nil {
		return fmt.Errorf("unknown attribute %q in the %s", printable(name), where)
	}
	if seen[name] {
		return fmt.Errorf("attribute %s is given twice", name)
	}
	seen[name] = true
	value, err := percentDecode(raw)
	if err == nil && value == "" {
		err = errors.New("is empty")
	}
	if err == nil {
		err = set(value)
	}
	if err != nil {
		return fmt.Errorf("attribute %s: %w", name, err)
	}
	return nil
}

// setter returns the function that sets the attribute of that name, nil if there is no such attribute.
func (u *URI) setter(name, where string) func(string) error {
	text := func(field *string) func(string) error {
		return func(v string) error {
			if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
				return errors.New("is not UTF-8 text")
			}
			*field = v
			return nil
		}
	}
	switch where + " " + name {
	case "path token":
		return text(&u.Token)
	case "path manufacturer":
		return text(&u.Manufacturer)
	case "path model":
		return text(&u.Model)
	case "path serial":
		return text(&u.Serial)
	case "path object":
		return text(&u.Object)
	case "path id":
		return func(v string) error { u.ID = []byte(v); return nil }
	case "path slot-id":
		return u.setSlotID
	case "path type":
		return func(v string) error {
			if v != "private" {
				return errors.New(`must be "private": the attestor key is a private key`)
			}
			return nil
		}
	case "query module-path":
		return text(&u.ModulePath)
	case "query module-name":
		return text(&u.ModuleName)
	case "query pin-source":
		return u.setPINSource
	}
	return nil
}

func (u *URI) setSlotID(v string) error {
	n, err := strconv.ParseUint(v, 10, strconv.IntSize)
	if err != nil {
		return errors.New("must be a decimal number")
	}
	slot := uint(n)
	u.SlotID = &slot
	return nil
}

func (u *URI) setPINSource(v string) error {
	if strings.HasPrefix(v, "|") {
		return errors.New("must be a file, such as pin-source=file:/etc/attestd/pin, and not a command")
	}
	if name, found := strings.CutPrefix(v, credentialScheme); found {
		if !isCredentialName(name) {
			return errors.New("credential: must be followed by a name without a slash")
		}
		u.PINSource = v
		return nil
	}
	if strings.ContainsRune(v, 0) || !utf8.ValidString(v) || !filepath.IsAbs(pinPath(v)) {
		return errors.New("must be an absolute path, file:/path or credential:NAME")
	}
	u.PINSource = v
	return nil
}

// credentialScheme begins a pin-source that names a systemd credential: a file in $CREDENTIALS_DIRECTORY
// (systemd.exec(5), LoadCredential=). RFC 7512, section 2.4, allows a pin-source other than a file.
const credentialScheme = "credential:"

// CredentialsVariable is the environment variable with the folder of a service's credentials.
const CredentialsVariable = "CREDENTIALS_DIRECTORY"

// Credential returns the name of the credential that holds the PIN, "" if pin-source is not credential:NAME.
func (u URI) Credential() string {
	name, found := strings.CutPrefix(u.PINSource, credentialScheme)
	if !found {
		return ""
	}
	return name
}

// isCredentialName reports whether a name is valid as a file name.
func isCredentialName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && utf8.ValidString(name) &&
		!strings.ContainsAny(name, "/\x00")
}

// PINFile returns the path of the file that pin-source names, "" if there is no pin-source. For a credential,
// $CREDENTIALS_DIRECTORY must be set.
func (u URI) PINFile() (string, error) {
	name := u.Credential()
	if name == "" {
		return pinPath(u.PINSource), nil
	}
	dir := os.Getenv(CredentialsVariable)
	if dir == "" {
		return "", fmt.Errorf("%s%s: $%s is not set: systemd sets it for services with LoadCredential= or "+
			"LoadCredentialEncrypted=",
			credentialScheme, name, CredentialsVariable)
	}
	return filepath.Join(dir, name), nil
}

// pinPath returns the path in a pin-source that is not a credential.
func pinPath(source string) string {
	path := strings.TrimPrefix(source, "file:")
	if path != source {
		path = strings.TrimPrefix(path, "//") // file:///path
	}
	return path
}

// String returns the URI with its attributes in the order of RFC 7512. It holds no secrets.
func (u URI) String() string {
	var path, query []string
	add := func(list *[]string, name, value string) {
		if value != "" {
			*list = append(*list, name+"="+value)
		}
	}
	add(&path, "token", percentEncode(u.Token, ""))
	add(&path, "manufacturer", percentEncode(u.Manufacturer, ""))
	add(&path, "model", percentEncode(u.Model, ""))
	add(&path, "serial", percentEncode(u.Serial, ""))
	add(&path, "object", percentEncode(u.Object, ""))
	add(&path, "id", percentEncodeAll(u.ID))
	if u.SlotID != nil {
		add(&path, "slot-id", strconv.FormatUint(uint64(*u.SlotID), 10))
	}
	add(&query, "module-path", percentEncode(u.ModulePath, "/"))
	add(&query, "module-name", percentEncode(u.ModuleName, "/"))
	add(&query, "pin-source", percentEncode(u.PINSource, "/"))
	s := uriScheme + strings.Join(path, ";")
	if len(query) > 0 {
		s += "?" + strings.Join(query, "&")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler; see String.
func (u URI) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; see ParseURI.
func (u *URI) UnmarshalText(text []byte) error {
	parsed, err := ParseURI(string(text))
	if err != nil {
		return err
	}
	*u = parsed
	return nil
}

// uriMarks are the characters other than letters and digits that need no encoding in any part of the URI: unreserved,
// and the characters of pk11-res-avail that are not separators.
const uriMarks = "-._~:[]@!$'()*+,="

func percentDecode(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '%':
			if !isAlphanumeric(s[i]) && !strings.ContainsRune(uriMarks+"/?|&", rune(s[i])) {
				return "", errors.New("has a character that must be percent-encoded")
			}
			b.WriteByte(s[i])
		default:
			if len(s) < i+3 {
				return "", errors.New("ends within a percent-encoding")
			}
			c, err := hex.DecodeString(s[i+1 : i+3])
			if err != nil {
				return "", errors.New("has a % without two hex digits after it")
			}
			b.WriteByte(c[0])
			i += 2
		}
	}
	return b.String(), nil
}

func percentEncode(s, alsoPlain string) string {
	var b strings.Builder
	for i := range len(s) {
		if isAlphanumeric(s[i]) || strings.IndexByte(uriMarks+alsoPlain, s[i]) >= 0 {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}

// percentEncodeAll encodes every byte, as RFC 7512, section 2.3, recommends for id.
func percentEncodeAll(raw []byte) string {
	var b strings.Builder
	for _, c := range raw {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// printable truncates an unknown name for an error.
func printable(name string) string {
	const most = 40
	if len(name) > most {
		return name[:most] + "…"
	}
	return name
}
