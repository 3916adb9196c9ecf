package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/journal"
)

// heading is the first line of the text that the log key signs for a report. A checkpoint begins with the log's origin,
// which contains no space, so neither signature is valid for the other.
const heading = "attestd audit report v1"

// Signed is a report with its signature: the file that 'attestd report' writes.
type Signed struct {
	// Report is the JSON of a Report. The signature covers its compact form (json.Compact).
	Report json.RawMessage `json:"report"`
	// Signature is a signed note (C2SP signed-note) of three lines: the heading, the log's name, and the SHA-256 of the
	// report in base64.
	Signature string `json:"signature"`
}

// Sign signs a report with the log's key.
//
// Errors: the signer's, such as journal.ErrUnsigned.
func Sign(r Report, signer note.Signer) (Signed, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return Signed{}, fmt.Errorf("sign report: %w", err)
	}
	signed, err := note.Sign(&note.Note{Text: signedText(journal.LogName(signer), text)}, signer)
	if err != nil {
		return Signed{}, fmt.Errorf("sign report: %w", err)
	}
	return Signed{text, string(signed)}, nil
}

func signedText(log string, compact []byte) string {
	hash := sha256.Sum256(compact)
	return fmt.Sprintf("%s\n%s\n%s\n", heading, log, base64.StdEncoding.EncodeToString(hash[:]))
}

// Code is the reason for refusing a report. Codes are stable.
type Code string

// The codes of Error.
const (
	CodeNotReport     Code = "not_a_report"         // the file is not a report, or of an unknown version
	CodeSignature     Code = "invalid_signature"    // the verifier's key did not sign it
	CodeChanged       Code = "changed"              // the signature is for another report
	CodeOtherLog      Code = "other_log"            // the report is from another log than the verifier key's
	CodeCheckpoint    Code = "invalid_checkpoint"   // the checkpoint is not signed, or does not match the result
	CodeInconsistent  Code = "inconsistent"         // the counts contradict each other
	CodeJournalFaults Code = "journal_not_verified" // the report is genuine, but its audit found faults
)

// Error is a reason to refuse a report.
type Error struct {
	Code   Code
	Detail string
}

func (e *Error) Error() string { return e.Detail }

func refuse(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// Verify checks a report against the log's verifier key. Take the key from a trusted source, not from the report. If
// the file can be parsed, Verify returns the report even with an error.  Errors: *Error. With CodeJournalFaults, the
// report is genuine.
func Verify(file []byte, verifier note.Verifier) (r Report, err error) {
	var signed Signed
	if json.Unmarshal(file, &signed) != nil || len(signed.Report) == 0 || signed.Signature == "" {
		return r, refuse(CodeNotReport,
			"this is not the JSON file of an audit report, which has the members report and signature")
	}
	decoder := json.NewDecoder(bytes.NewReader(signed.Report))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil || r.Version != Version {
		return r, refuse(CodeNotReport,
			"this is not an audit report of version %d, the only one that this attestd knows", Version)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, signed.Report); err != nil {
		return r, refuse(CodeNotReport, "this is not an audit report: %s", err)
	}
	own := journal.LogName(verifier)
	if r.Log != own {
		return r, refuse(CodeOtherLog, "the report names the log %s, but the verifier key belongs to %s", r.Log, own)
	}
	named, err := journal.ParseVerifier(r.VerifierKey)
	if err != nil || journal.LogName(named) != own {
		return r, refuse(CodeOtherLog, "the report names the verifier key of another log than %s", own)
	}
	n, err := note.Open([]byte(signed.Signature), note.VerifierList(verifier))
	var unverified *note.UnverifiedNoteError
	switch {
	case errors.As(err, &unverified):
		return r, refuse(CodeSignature, "the report is not signed by the log %s", own)
	case err != nil:
		return r, refuse(CodeSignature, "the report's signature is invalid: %s", err)
	case n.Text != signedText(own, compact.Bytes()):
		return r, refuse(CodeChanged,
			"the report was changed after it was signed, or the signature belongs to another report")
	}
	return r, r.check(verifier)
}

// check checks the content of a report with a valid signature.
func (r Report) check(verifier note.Verifier) error {
	v := r.Verification
	if tree, err := journal.OpenCheckpoint([]byte(v.Checkpoint), verifier); v.OK &&
		(err != nil || tree.N != v.Size || !bytes.Equal(tree.Hash[:], v.Root)) {
		return refuse(CodeCheckpoint, "the checkpoint in the report is not of the %d audited records", v.Size)
	}
	var attestations, refusals int64
	for _, k := range r.Keys {
		attestations += k.Attestations
	}
	for _, n := range r.Codes {
		refusals += n
	}
	switch {
	case attestations != r.Attestations || refusals != r.Refusals || !r.From.Before(r.Until):
		return refuse(CodeInconsistent, "the counts or the period of the report contradict each other")
	case !v.OK:
		return refuse(CodeJournalFaults,
			"the report is genuine, but its audit found %d faults in the journal, and %d contradictions by witnesses",
			v.Faults, len(v.Contradictions))
	}
	return nil
}
