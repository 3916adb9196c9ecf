package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

// redeemedEntry is an attestation with its redemptions.
type redeemedEntry struct {
	journal.Entry
	Redeemed *chain.Redeemed `json:"redeemed"` // nil if none of it was redeemed
}

// listRedeemed lists the attestations that were redeemed, at least in part, or the attestations that were not.
func (a *app) listRedeemed(cmd *cobra.Command, q journal.Query, redeemed, unredeemed bool) error {
	if redeemed && unredeemed || q.EventsOnly {
		return usagef(cmd, "give only one of --redeemed, --unredeemed and --events")
	}
	return a.withChain(cmd, func(c chainBackend) error {
		return a.withBackend(cmd, func(o backend) error {
			found, err := findRedeemed(cmd, o, c, q, redeemed)
			if err != nil {
				return err
			}
			return a.printRedeemed(found, redeemed)
		})
	})
}

// findRedeemed reads the journal page by page until it has q.Size() entries.
func findRedeemed(cmd *cobra.Command, o backend, c chainBackend, q journal.Query,
	redeemed bool) ([]redeemedEntry, error) {
	found, most := []redeemedEntry{}, q.Size()
	q.Limit, q.AttestationsOnly = wire.MaxHashes, true
	for len(found) < most {
		page, err := o.Records(cmd.Context(), q)
		if err != nil || len(page) == 0 {
			return found, err
		}
		hashes := make([]appliance.Digest, len(page))
		for i, e := range page {
			hashes[i] = e.Record.Hash
		}
		of, err := c.Redeemed(cmd.Context(), hashes)
		if err != nil {
			return nil, err
		}
		sums := make(map[appliance.Digest]*chain.Redeemed, len(of))
		for i := range of {
			sums[of[i].Hash] = &of[i]
		}
		for _, e := range page {
			if sum := sums[e.Record.Hash]; (sum != nil) == redeemed && len(found) < most {
				found = append(found, redeemedEntry{e, sum})
			}
		}
		if q.Before = page[len(page)-1].Index; q.Before == 0 {
			break
		}
	}
	return found, nil
}

func (a *app) printRedeemed(found []redeemedEntry, redeemed bool) error {
	rows := make([][]string, len(found))
	for i, e := range found {
		r := e.Record
		rows[i] = []string{fmt.Sprint(e.Index), text.Time(r.Time), r.ID.String(), r.KeyID,
			r.UnspendableAddress.String(), r.Beneficiary.String()}
		if redeemed {
			rows[i] = append(rows[i], text.Time(e.Redeemed.Time), e.Redeemed.Amount.String())
		}
	}
	return a.print(found, func(w io.Writer) {
		if len(found) == 0 {
			a.say("No attestations found.")
			return
		}
		header := "INDEX\tTIME\tID\tKEY\tUNSPENDABLE\tBENEFICIARY"
		if redeemed {
			header += "\tREDEEMED\tAMOUNT"
		}
		table(w, header, rows, "ID", "TIME", "KEY")
	})
}
