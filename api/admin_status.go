package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/history"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/journal"
)

func (a *Admin) status(c *fiber.Ctx) error {
	ctx, cancel := context.WithTimeout(a.base, readyTimeout)
	defer cancel()
	return sendJSON(c, fiber.StatusOK, a.statusNow(ctx))
}

// Checks rates each part of the appliance, as the status shows it.
func (a *Admin) Checks(ctx context.Context) []health.Finding { return a.statusNow(ctx).Checks }

func (a *Admin) statusNow(ctx context.Context) wire.Status {
	s := wire.Status{
		Version: a.opts.Version, Started: a.started.UTC(), UptimeSeconds: int64(a.now().Sub(a.started).Seconds()),
		SignerAddress: a.attestor.DefaultKey().Signer.Address(), Keys: attestorKeys(a.attestor),
		Scheme: a.attestor.Scheme.Name, Failing: map[string]string{},
	}
	faults := a.faults(ctx, &s)
	s.Ready, s.Signing = len(faults) == 0, signing(faults)
	for part, err := range faults {
		s.Failing[part] = err.Error()
	}
	for name, err := range a.otherKeys(ctx, s.Keys) {
		s.Failing["key "+name] = err.Error()
	}
	s.Reads = a.reads(ctx)
	if a.opts.Surroundings != nil {
		s.Surroundings = a.opts.Surroundings()
	}
	s.Checks = a.checks(ctx, s)
	return s
}

// otherKeys returns the errors of the attestor keys besides the default key, by name. The default key is the part "hsm".
func (a *Admin) otherKeys(ctx context.Context, keys []wire.AttestorKey) map[string]error {
	errs := make(map[string]error)
	for i, k := range a.attestor.AttestorKeys() {
		if i < len(keys) && keys[i].Default {
			continue
		}
		if err := k.Signer.Ready(ctx); err != nil {
			errs[k.Name] = err
		}
	}
	return errs
}

// faults fills in the journal's status and returns the errors of the parts that are not ready.
func (a *Admin) faults(ctx context.Context, s *wire.Status) map[string]error {
	others := map[string]func() error{"replica": a.opts.ReplicaReady}
	if a.opts.Chain != nil {
		others["chain"] = a.opts.Chain.Ready
	}
	faults := failing(ctx, a.attestor, others)
	var err error
	if s.Journal, err = a.journalStatus(ctx); err != nil && faults["journal"] == nil {
		faults["journal"] = err
	}
	s.TreeSize = s.Journal.Records
	return faults
}

func (a *Admin) journalStatus(ctx context.Context) (s wire.JournalStatus, err error) {
	s.LastAudit = a.audited.Load()
	signed, err := a.attestor.Journal.Checkpoint(ctx)
	if err != nil {
		return s, err
	}
	_, tree, err := journal.ReadCheckpoint(signed) // our own checkpoint: its signature needs no check
	if err != nil {
		return s, err
	}
	s.Records, s.RootHash = tree.N, hex.EncodeToString(tree.Hash[:])
	newest, err := a.attestor.Journal.List(ctx, journal.Query{Limit: 1})
	if len(newest) > 0 {
		s.Newest = newest[0].Time()
	}
	return s, err
}

// signing derives from the failing parts whether the appliance can attest. Reads are irrelevant. The chain matters only
// if it has halted attesting.
func signing(faults map[string]error) wire.Signing {
	switch stopped := faults["stop"]; {
	case appliance.CodeOf(stopped) == appliance.CodeHalted:
		return wire.Signing{State: wire.SigningHalted, Why: stopped.Error(), Remedy: "attestd chain status"}
	case stopped != nil:
		return wire.Signing{State: wire.SigningPaused, Why: stopped.Error(), Remedy: "attestd resume"}
	}
	var why []string
	for _, part := range []string{"hsm", "journal"} {
		if err := faults[part]; err != nil {
			why = append(why, err.Error())
		}
	}
	if len(why) > 0 {
		return wire.Signing{State: wire.SigningFailing, Why: strings.Join(slices.Compact(why), "; "),
			Remedy: "attestd doctor"}
	}
	return wire.Signing{State: wire.SigningReady}
}

func (a *Admin) reads(ctx context.Context) wire.ReadsStatus {
	s := a.opts.Reads
	if a.opts.Replica == nil {
		return s
	}
	if held, err := a.replicaHolds(ctx); err == nil {
		s.Replica = &held
	}
	return s
}

// replicaHolds returns the replica's contents and, if it has a follower, the follower's progress.
func (a *Admin) replicaHolds(ctx context.Context) (s wire.ReplicaStatus, err error) {
	if s.Status, err = index.StatusOf(ctx, a.opts.Replica); err == nil && a.opts.Follower != nil {
		s.Follower = new(a.opts.Follower.Status())
	}
	return s, err
}

func auditOf(r audit.Report, now time.Time) *wire.Audit {
	return &wire.Audit{Time: now.UTC(), Records: r.Size, RootHash: hex.EncodeToString(r.Root),
		Damages: int64(len(r.Damages)) + r.More}
}

// activity streams the samples of the last seconds. With follow it also streams each new sample.
func (a *Admin) activity(c *fiber.Ctx) error {
	if a.opts.Activity == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon does not collect samples")
	}
	seconds, err := queryInt(c, "seconds")
	if err != nil {
		return err
	}
	follow := c.QueryBool("follow")
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		out := json.NewEncoder(w)
		err := a.opts.Activity.each(ctx, int(min(seconds, keptSamples)), follow, func(s wire.Sample) error {
			return out.Encode(s)
		})
		if errors.Is(err, context.Canceled) {
			return nil // the server stops, or the client has disconnected
		}
		return err
	})
}

// history answers with the work of the last seconds, at most history.Longest.
func (a *Admin) history(c *fiber.Ctx) error {
	if a.opts.History == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon keeps no history")
	}
	seconds, err := queryInt(c, "seconds")
	if err != nil {
		return err
	}
	now := a.now().UTC()
	answer := wire.History{Until: now, Steps: []history.Step{},
		From: now.Add(-time.Duration(min(seconds, int64(history.Longest.Seconds()))) * time.Second)}
	length, steps := a.opts.History.Since(answer.From, now)
	answer.StepSeconds, answer.Steps = int64(length.Seconds()), append(answer.Steps, steps...)
	return sendJSON(c, fiber.StatusOK, answer)
}
