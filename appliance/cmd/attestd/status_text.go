package main

import (
	"fmt"
	"io"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/text"
)

// statusWidth is the number of columns of a small terminal, which bounds the output.
const statusWidth = 80

// write says first whether the appliance signs, with the next command to type if it does not. Then it describes the
// parts.
func (g glance) write(w io.Writer, now time.Time) {
	signing := g.signing()
	if signing.State == wire.SigningReady {
		fmt.Fprintf(w, "%s, as %s\n\n", paint(w, green, "Signing: operational"), g.status.SignerAddress)
	} else {
		paragraph(w, red, "Signing: unavailable: "+text.OneLine(signing.Why))
		fmt.Fprintf(w, "Next: %s\n\n", signing.Remedy)
	}
	if g.status == nil {
		fields(w, g.files.rows())
		return
	}
	fields(w, statusRows(*g.status, now))
	writeFaults(w, *g.status)
}

// writeFaults writes the checks that are not well, the failures first, each with its remedy.
func writeFaults(w io.Writer, s wire.Status) {
	for _, f := range health.Faults(s.Checks) {
		why := s.Failing[f.Check]
		if (f.Check == "hsm" || f.Check == "journal" || f.Check == "stop") && why != "" {
			continue // the first line says it
		}
		fmt.Fprintln(w)
		paragraph(w, stateColours[f.State], fmt.Sprintf("%s  %s: %s", f.State, f.Check, text.OneLine(f.Detail)))
		paragraph(w, "", "→ "+f.Remedy)
	}
}

// stateColours are the colours of findings.
var stateColours = map[health.State]string{health.OK: green, health.Warn: yellow, health.Fail: red}

// paragraph writes a text in a colour, "" for none. It is wrapped to statusWidth, or to a narrower terminal.
func paragraph(w io.Writer, colour, s string) {
	width := statusWidth
	if columns := room(w); columns > 0 {
		width = min(width, columns)
	}
	for _, line := range text.Wrap(s, width) {
		fmt.Fprintln(w, paint(w, colour, line))
	}
}

func statusRows(s wire.Status, now time.Time) [][2]string {
	rows := [][2]string{
		{"version", fmt.Sprintf("%s, up %s", s.Version, time.Duration(s.UptimeSeconds)*time.Second)},
		{"HSM", hsmUse(s.HSM)},
		{"journal", journalRow(s.Journal, now)},
		{"root", s.Journal.RootHash},
		{"audit", auditRow(s.Journal.LastAudit, now)},
		{"reads", readsRow(s.Reads)},
	}
	return append(append(rows, machineRows(s.Machine)...), [2]string{"API", s.API}, [2]string{"console", s.Console})
}

func hsmUse(u *wire.HSMUse) string {
	if u == nil {
		return ""
	}
	state := "ready"
	if !u.Ready {
		state = "fails"
	}
	line := fmt.Sprintf("%s, %d of %d sessions in use", state, u.SessionsInUse, u.MostSessions)
	if u.Waiting > 0 {
		line += fmt.Sprintf(", %d wait", u.Waiting)
	}
	if u.WrongSignatures > 0 {
		line += fmt.Sprintf(", %d WRONG SIGNATURES WITHHELD", u.WrongSignatures)
	}
	return line
}

func journalRow(j wire.JournalStatus, now time.Time) string {
	switch {
	case j.RootHash == "":
		return "cannot be read"
	case j.Newest.IsZero():
		return "empty"
	}
	return fmt.Sprintf("%s records, newest %s (%s)", text.Count(j.Records), text.Time(j.Newest), since(j.Newest, now))
}

func auditRow(a *wire.Audit, now time.Time) string {
	switch {
	case a == nil:
		return "none since the start; run: attestd log verify"
	case a.Damages > 0:
		return fmt.Sprintf("%d FAULTS in %s records, %s; run: attestd log verify", a.Damages, text.Count(a.Records),
			since(a.Time, now))
	}
	return fmt.Sprintf("%s records verified, %s", text.Count(a.Records), since(a.Time, now))
}

// readsRow fits one line: it cuts a long upstream address.
func readsRow(r wire.ReadsStatus) string {
	switch {
	case r.Replica == nil && r.Upstream != "":
		return r.Source + " of " + short(r.Upstream, 60)
	case r.Replica == nil:
		return r.Source
	case r.Replica.Follower == nil:
		return "replica, without an upstream"
	}
	f := *r.Replica.Follower
	return fmt.Sprintf("replica: %s; lag %s", text.Follower(f), text.Lag(f))
}

func machineRows(m *wire.Machine) (rows [][2]string) {
	if m == nil {
		return nil
	}
	if d := m.Disk; d != nil {
		rows = append(rows,
			[2]string{"disk", fmt.Sprintf("%s free of %s", config.RoundedSize(d.Free), config.RoundedSize(d.Total))})
	}
	clock := "synchronisation unknown"
	switch known := m.Clock.Synchronised; {
	case known != nil && *known:
		clock = "synchronised"
	case known != nil:
		clock = "not synchronised"
	}
	rows = append(rows, [2]string{"clock", clock})
	if c := m.Certificate; c != nil {
		left := fmt.Sprintf("%d days left", c.Days)
		if c.Days < 0 {
			left = "has ended"
		}
		rows = append(rows, [2]string{"certificate", fmt.Sprintf("%s, expires %s", left, text.Time(c.Ends))})
	}
	return rows
}

// rows are the fields that the files show.
func (f filesGlance) rows() (rows [][2]string) {
	if j := f.Journal; j != nil {
		rows = append(rows, [2]string{"journal", fmt.Sprintf("%s records published", text.Count(j.Records))},
			[2]string{"root", j.RootHash})
	}
	if f.Stopped != "" {
		rows = append(rows, [2]string{"stop", short(f.Stopped, 68)})
	}
	return append(rows, machineRows(f.Machine)...)
}

// line is the one-line form, for a watch without a terminal.
func (g glance) line(now time.Time) string {
	at, signing := text.Time(now), g.signing()
	if signing.State != wire.SigningReady {
		return fmt.Sprintf("%s  not signing: %s", at, text.OneLine(signing.Why))
	}
	line := fmt.Sprintf("%s  signing  %s records", at, text.Count(g.status.Journal.Records))
	if u := g.status.HSM; u != nil {
		line += fmt.Sprintf("  %d of %d sessions", u.SessionsInUse, u.MostSessions)
	}
	if r := g.status.Reads.Replica; r != nil && r.Follower != nil {
		line += "  lag " + text.Lag(*r.Follower)
	}
	return line
}
