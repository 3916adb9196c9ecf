package chain

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance/journal"
)

// recordRedeemed records once that an attestation of the journal was redeemed, when more than half of all RPCs report
// it. A redemption that cannot be recorded stays open, so that the next judgement tries again. It delays no alarm.
func (c *watched) recordRedeemed(ctx context.Context, r *Redemption, given *raised) {
	tell, _, _ := c.votes(r)
	if c.w.o.Redeemed == nil || r.Verdict != Known || given.redeemed || 2*len(tell) <= len(c.feeds) {
		return
	}
	if !c.redeemed.allow(time.Now()) {
		r.Open = true
		return
	}
	if err := c.appendRedeemed(ctx, *r); err != nil {
		r.Open = true
		c.log.Warn("chain: a redemption could not be recorded in the journal and is retried", "hash", r.Hash.String(),
			"error", err.Error())
		return
	}
	given.redeemed = true
}

func (c *watched) appendRedeemed(ctx context.Context, r Redemption) error {
	record, err := c.find(ctx, journal.Query{Hash: &r.Hash, Until: r.Until()})
	if err != nil || record == nil {
		return err
	}
	c.identity.Lock()
	chain := c.chainID
	c.identity.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.w.o.CallTimeout)
	defer cancel()
	return c.w.o.Redeemed(ctx, journal.Event{
		Kind: journal.EventRedeemed, By: "attestd", ID: redeemedID(chain, r, c.Contract),
		Details: c.details(r, "id", record.ID.String(), "keyId", record.KeyID,
			journal.DetailUnspendable, record.UnspendableAddress.String(),
			journal.DetailBeneficiary, record.Beneficiary.String()),
	})
}

// redeemedID is the ID of a redemption's event. Appliances that share a journal, and a watchtower that reads the chain
// again, also after a reorganisation, find the same.
func redeemedID(chain string, r Redemption, c Contract) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceURL,
		[]byte(chain+" "+c.Address.String()+" "+r.TransactionHash.String()+" "+r.Hash.String()))
}
