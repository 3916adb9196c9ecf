package sinks

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Maximum lengths of CEF fields.
const (
	maxCEFMessage = 1023 // of msg
	maxCEFUser    = 1023 // of suser
)

// cef returns CEF:0|vendor|product|version|class|name|severity|extension.
func (t fields) cef(version string) ([]byte, error) {
	var b strings.Builder
	name := "Attestation signed"
	if t.Type == typeEvent {
		name = strings.ReplaceAll(string(t.Event), "_", " ")
	}
	b.WriteString("CEF:0")
	for _, field := range []string{"attestd", "attestd", version, t.kind(), name, strconv.Itoa(t.severity.cef())} {
		b.WriteString("|" + cefHeader.Replace(field))
	}
	b.WriteString("|rt=" + strconv.FormatInt(t.Time.UnixMilli(), 10))
	add := func(key, value string) {
		if value != "" {
			b.WriteString(" " + key + "=" + cefExtension.Replace(value))
		}
	}
	labelled := func(key, label, value string) {
		if value != "" {
			add(key, value)
			add(key+"Label", label)
		}
	}
	detail, err := t.detail()
	if err != nil {
		return nil, fmt.Errorf("entry %d: %w", t.Index, err)
	}
	add("cat", t.Type)
	add("externalId", t.ID.String())
	labelled("cn1", "index", strconv.FormatInt(t.Index, 10))
	add("suid", t.KeyID)
	add("suser", clip(t.By, maxCEFUser))
	labelled("cs1", "hash", t.Hash)
	labelled("cs2", "signerAddress", t.SignerAddress)
	labelled("cs3", "log", t.Log)
	labelled("cs4", "leafHash", t.LeafHash)
	labelled("cs5", "unspendableAddress", t.UnspendableAddress)
	labelled("cs6", "beneficiary", t.Beneficiary)
	add("msg", clip(detail, maxCEFMessage))
	return []byte(b.String()), nil
}

// A header cannot contain line breaks. An extension escapes them. Other control characters become spaces in both.
var (
	cefHeader    = strings.NewReplacer(append([]string{`\`, `\\`, "|", `\|`}, controls("\r", " ", "\n", " ")...)...)
	cefExtension = strings.NewReplacer(append([]string{`\`, `\\`, "=", `\=`}, controls("\r", `\r`, "\n", `\n`)...)...)
)

// controls returns pairs for strings.NewReplacer: the given pairs, and a space for each control character other than CR
// and LF.
func controls(pairs ...string) []string {
	for c := range rune(0x20) {
		if c != '\r' && c != '\n' {
			pairs = append(pairs, string(c), " ")
		}
	}
	return append(pairs, "\x7f", " ")
}

// clip shortens a text to most characters. The journal has the full text.
func clip(s string, most int) string {
	const cut = "…"
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + cut
}
