package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/sinks"
)

func (a *Admin) records(c *fiber.Ctx) error {
	query, err := journalQuery(c)
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	entries, err := a.attestor.Journal.List(ctx, query)
	if err != nil {
		return err
	}
	answer := wire.Records{Records: make([]wire.Entry, len(entries))}
	for i, e := range entries {
		answer.Records[i] = shown(c, e)
	}
	return sendJSON(c, fiber.StatusOK, answer)
}

func journalQuery(c *fiber.Ctx) (q journal.Query, err error) {
	q.KeyID = strings.Clone(c.Query("key"))
	q.AttestationsOnly, q.EventsOnly = c.QueryBool("attestations"), c.QueryBool("events")
	if text := c.Query("hash"); text != "" {
		q.Hash = new(appliance.Digest)
		if q.Hash.UnmarshalText([]byte(text)) != nil {
			return q, appliance.Errorf(appliance.CodeInvalidField, "hash must be 0x and 64 hex digits").In("hash")
		}
	}
	if text := c.Query("unspendable"); text != "" {
		address, err := appliance.ParseAddress(text)
		if err != nil {
			return q, appliance.Errorf(appliance.CodeInvalidField, "unspendable %s", err).In("unspendable")
		}
		q.Unspendable = &address
	}
	if q.From, err = queryTime(c, "from"); err != nil {
		return q, err
	}
	if q.Until, err = queryTime(c, "until"); err != nil {
		return q, err
	}
	if q.Before, err = queryInt(c, "before"); err != nil {
		return q, err
	}
	q.Limit, err = queryLimit(c)
	return q, err
}

// queryLimit returns the query parameter limit, or zero if it is not set.
func queryLimit(c *fiber.Ctx) (int, error) {
	limit, err := queryInt(c, "limit")
	if err == nil && limit > journal.MaxListed {
		err = appliance.Errorf(appliance.CodeInvalidField, "limit must be at most %d", journal.MaxListed).In("limit")
	}
	return int(limit), err
}

func queryTime(c *fiber.Ctx, name string) (time.Time, error) {
	text := c.Query(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, appliance.Errorf(appliance.CodeInvalidField, "%s must be a time as in RFC 3339", name).In(name)
	}
	return t, nil
}

func queryInt(c *fiber.Ctx, name string) (int64, error) {
	text := c.Query(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, appliance.Errorf(appliance.CodeInvalidField, "%s must be a whole number, 0 or more", name).In(name)
	}
	return n, nil
}

func (a *Admin) find(ctx context.Context, c *fiber.Ctx) (journal.Entry, error) {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return journal.Entry{}, err
	}
	return a.attestor.Journal.ByID(ctx, id)
}

func (a *Admin) record(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	e, err := a.find(ctx, c)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, shown(c, e))
}

// shown returns an entry for the caller. If the query has redact=addresses, the entry has no addresses.
func shown(c *fiber.Ctx, e journal.Entry) wire.Entry {
	if c.Query(wire.RedactQuery) == string(sinks.RedactAddresses) {
		e = e.WithoutAddresses()
	}
	return wire.NewEntry(e)
}

func (a *Admin) prove(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	e, err := a.find(ctx, c)
	if err != nil {
		return err
	}
	proof, err := a.attestor.Journal.Prove(ctx, e.Index)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.ProvenEntry{Entry: shown(c, e), Proof: proof})
}

func (a *Admin) logKey(c *fiber.Ctx) error {
	return sendJSON(c, fiber.StatusOK, wire.LogKey{VerifierKey: a.opts.LogVerifier})
}

func (a *Admin) checkpoint(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	signed, err := a.attestor.Journal.Checkpoint(ctx)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	return c.Send(signed)
}

// entries streams leaves, one per line. A leaf contains no newline. If streaming fails, the connection is closed
// without the final chunk, so the client sees that the answer is incomplete.
func (a *Admin) entries(c *fiber.Ctx) error {
	first, err := queryInt(c, "from")
	if err != nil {
		return err
	}
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		out := bufio.NewWriterSize(w, 32<<10)
		err := a.attestor.Journal.Entries(ctx, first, func(e journal.Entry) error {
			if _, err := out.Write(e.Leaf); err != nil {
				return err
			}
			return out.WriteByte('\n')
		})
		return errors.Join(err, out.Flush())
	})
}

func (a *Admin) verify(c *fiber.Ctx) error {
	var request wire.VerifyLog
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	return streamReport(a, c,
		func(ctx context.Context, progress func(done, total int64)) (audit.Report, error) {
			report, err := a.attestor.Journal.Verify(ctx, audit.Options{
				Earlier: request.Earlier, Signers: request.Signers, Own: a.attestor.Addresses(), Progress: progress,
			})
			// Only audits without the caller's input are stored, because that input may be wrong.
			if err == nil && request.Earlier == nil && request.Signers == nil {
				a.audited.Store(auditOf(report, a.now()))
			}
			return report, err
		})
}

// report makes a signed audit report of a period.
func (a *Admin) report(c *fiber.Ctx) error {
	if a.opts.Report == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon cannot make reports")
	}
	var request wire.MakeReport
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	o := report.Options{From: request.From, Until: request.Until, By: callerOf(c), Now: a.now(),
		Audit: audit.Options{Own: a.attestor.Addresses()}}
	if err := a.recordOrQueue(c, journal.EventReport, o.Details()); err != nil {
		return err
	}
	return streamReport(a, c,
		func(ctx context.Context, progress func(done, total int64)) (report.Signed, error) {
			o.Audit.Progress = progress
			return a.opts.Report(ctx, o)
		})
}
