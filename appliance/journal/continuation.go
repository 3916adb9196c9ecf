package journal

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Continuation says which log a new log continues, and why. Its event is the new log's first leaf. The old log's leaves
// follow it, byte for byte. A log is continued if its database lost its tail or was restored from an older copy. So no
// second history is ever signed under the old log's name.
type Continuation struct {
	Log       string // the old log's verifier key (C2SP signed-note: name+hash+key)
	Origin    string // of the new log
	Published string // the highest checkpoint known to have been published; empty if unknown
	Surviving string // the checkpoint of the leaves that follow, signed by the old log's key
	Reason    string
	NewKey    string // the new log's verifier key if it is not derived from the old log's key; see Event.GiveNewLogKey
}

// The details of an EventLogContinued.
const (
	DetailLog       = "log"
	detailOrigin    = "origin"
	detailPublished = "published"
	detailSurviving = "surviving"
	detailReason    = "reason"
	detailNewKey    = "newKey"
)

// Event returns the event without By, ID, Time and Salt.
func (c Continuation) Event() Event {
	details := map[string]string{DetailLog: c.Log, detailOrigin: c.Origin, detailSurviving: c.Surviving,
		detailReason: c.Reason}
	if c.Published != "" {
		details[detailPublished] = c.Published
	}
	return Event{Kind: EventLogContinued, Details: details}
}

// Continuation reads the event's details. ok is false for an event of another kind.
func (e Event) Continuation() (c Continuation, ok bool) {
	d := e.Details
	return Continuation{
		Log: d[DetailLog], Origin: d[detailOrigin], Published: d[detailPublished], Surviving: d[detailSurviving],
		Reason: d[detailReason],
		NewKey: d[detailNewKey],
	}, e.Kind == EventLogContinued
}

// Verify checks an event on its own: an EventLogContinued must carry a checkpoint that the old log signed.
func (e Event) Verify() error {
	c, ok := e.Continuation()
	if !ok {
		return nil
	}
	if _, err := c.Tree(); err != nil {
		return fmt.Errorf("the continued log: %w", err)
	}
	return nil
}

// Tree verifies the surviving checkpoint with the old log's key and returns the tree of the leaves that follow.
func (c Continuation) Tree() (tlog.Tree, error) {
	verifier, err := note.NewVerifier(c.Log)
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("log %q: %w", c.Log, err)
	}
	return OpenCheckpoint([]byte(c.Surviving), verifier)
}

// Names reports whether name is the LogName of a log that c continues. That is the log of the leaves that follow, or
// the log of the published checkpoint.
func (c Continuation) Names(name string) bool {
	verifier, err := note.NewVerifier(c.Log)
	return err == nil && LogName(verifier) == name || c.Published != "" && SignerOf([]byte(c.Published)) == name
}

// LogName identifies a log by its key's name and hash, as in the signature line of a note.
func LogName(key interface {
	Name() string
	KeyHash() uint32
}) string {
	return fmt.Sprintf("%s+%08x", key.Name(), key.KeyHash())
}

// SignerOf returns the LogName of the first signature of a note without verifying it. It returns "" for a note without
// a signature.
func SignerOf(signed []byte) string {
	_, err := note.Open(signed, note.VerifierList())
	if unverified, ok := errors.AsType[*note.UnverifiedNoteError](err); ok && len(unverified.Note.UnverifiedSigs) > 0 {
		s := unverified.Note.UnverifiedSigs[0]
		return fmt.Sprintf("%s+%08x", s.Name, s.Hash)
	}
	return ""
}

// sinceSuffix matches the suffix that NextOrigin appends.
var sinceSuffix = regexp.MustCompile(`/since-\d{8}T\d{6}Z$`)

// NextOrigin returns the origin of a log that continues the log of the given origin:
// example.com/attestd/since-20261122T031500Z.
func NextOrigin(origin string, now time.Time) string {
	next := sinceSuffix.ReplaceAllString(origin, "") + now.UTC().Format("/since-20060102T150405Z")
	if next != origin {
		return next
	}
	return NextOrigin(origin, now.Add(time.Second))
}

// validReason returns an error unless the reason is one line of at most 1000 bytes.
func validReason(reason string) error {
	if strings.TrimSpace(reason) == "" || len(reason) > 1000 || strings.ContainsFunc(reason, func(r rune) bool {
		return r < ' '
	}) {
		return errors.New("a reason is required: one line of at most 1000 bytes")
	}
	return nil
}
