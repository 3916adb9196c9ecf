package chain_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/attestd/attestd/store/redemptions"
)

// signer is an attestor key in memory. It plays the appliance or a thief.
type signer struct {
	key *ecdsa.PrivateKey
	n   byte
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key: key}
}

func (s *signer) Address() appliance.Address {
	return appliance.Address(crypto.PubkeyToAddress(s.key.PublicKey))
}
func (s *signer) PublicKey() []byte           { return crypto.FromECDSAPub(&s.key.PublicKey) }
func (s *signer) Ready(context.Context) error { return nil }
func (s *signer) Sign(_ context.Context, d appliance.Digest) (appliance.Signature, error) {
	rsv, err := crypto.Sign(d[:], s.key)
	if err != nil {
		return appliance.Signature{}, err
	}
	return secp256k1.NewSignature(d, [64]byte(rsv[:64]), s.PublicKey())
}

// attest signs a different message each time.
func (s *signer) attest(t *testing.T) appliance.Attestation {
	t.Helper()
	s.n++
	hash := appliance.Digest(crypto.Keccak256Hash([]byte{s.n}))
	hash[0] = 0
	signature, err := s.Sign(t.Context(), hash)
	if err != nil {
		t.Fatal(err)
	}
	return appliance.Attestation{ID: uuid.New(), Hash: hash, Signature: signature, SignerAddress: s.Address()}
}

// memoryJournal is a journal in memory.
type memoryJournal struct {
	mu      sync.Mutex
	records map[appliance.Digest]appliance.Record
	err     error
	asked   func(appliance.Digest) // may be nil
}

func (j *memoryJournal) append(a appliance.Attestation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.records == nil {
		j.records = make(map[appliance.Digest]appliance.Record)
	}
	j.records[a.Hash] = appliance.Record{Attestation: a, KeyID: "payments"}
}

func (j *memoryJournal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

func (j *memoryJournal) List(_ context.Context, q journal.Query) ([]journal.Entry, error) {
	j.mu.Lock()
	r, found := j.records[*q.Hash]
	err, asked := j.err, j.asked
	j.mu.Unlock()
	if asked != nil {
		asked(*q.Hash)
	}
	if err != nil || !found {
		return nil, err
	}
	return []journal.Entry{{Record: r}}, nil
}

// rig is a watchtower over one contract, with recorders of its alarms.
type rig struct {
	*chain.Watchtower
	t       *testing.T
	options chain.Options
	path    string
	store   *redemptions.Store
	journal *memoryJournal
	stop    func()

	mu           sync.Mutex
	log          bytes.Buffer
	events       []journal.Event
	redeemed     map[string]journal.Event // by ID
	unrecorded   error                    // if set, redemptions cannot be recorded
	halts        []string
	acknowledged []string
}

const waitMost = 3 * time.Minute

func newRig(t *testing.T, c chain.Contract) *rig {
	t.Helper()
	c.Name = "usdc"
	if c.Address == (appliance.Address{}) {
		c.Address = chaintest.Contract
	}
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "chain.db"), journal: new(memoryJournal)}
	r.options = chain.Options{
		Contracts: []chain.Contract{c}, PollInterval: 5 * time.Millisecond, Journal: r.journal, Halt: r.halt, Events: r,
		Log:       slog.New(slog.NewTextHandler(r, nil)),
		Redeemed:  r.redeem,
		LookAgain: 10 * time.Millisecond, Patience: time.Minute, CheckEvery: 10 * time.Millisecond,
	}
	return r
}

// start starts the watchtower, or continues from the stored position.
func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.store, err = redemptions.Open(r.path, 0); err != nil {
		r.t.Fatal(err)
	}
	r.options.Store = r.store
	if r.Watchtower, err = chain.New(r.options); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
		if err := r.store.Close(); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(r.stop)
}

func (r *rig) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(line)
}

// text returns the log.
func (r *rig) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *rig) Record(e journal.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *rig) redeem(_ context.Context, e journal.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unrecorded != nil {
		return r.unrecorded
	}
	if r.redeemed == nil {
		r.redeemed = make(map[string]journal.Event)
	}
	r.redeemed[e.ID.String()] = e
	return nil
}

// redemptions returns the details of the recorded redemptions.
func (r *rig) redemptions() (all []map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.redeemed {
		all = append(all, e.Details)
	}
	return all
}

func (r *rig) unrecord(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unrecorded = err
}

func (r *rig) halt(_ context.Context, redemption, _ string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.acknowledged, redemption) {
		return false, nil
	}
	began := len(r.halts) == 0
	if !slices.Contains(r.halts, redemption) {
		r.halts = append(r.halts, redemption)
	}
	return began, nil
}

// resume acknowledges all halts and returns their number.
func (r *rig) resume() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.halts)
	r.acknowledged, r.halts = append(r.acknowledged, r.halts...), nil
	return n
}

func (r *rig) halted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.halts) > 0
}

// logged returns the log lines that contain all of the texts.
func (r *rig) logged(texts ...string) (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.log.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// recorded counts the recorded events of a kind.
func (r *rig) recorded(kind journal.EventKind) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (r *rig) status() chain.ContractStatus {
	r.t.Helper()
	s, err := r.Status()
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Contracts[0]
}

// eventually waits until a condition holds.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(waitMost); !is(); {
		if time.Now().After(deadline) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("not within %s: %s\n%s", waitMost, what, r.log.String())
		}
		time.Sleep(2 * time.Millisecond) // polling interval
	}
}

// read waits until all RPCs were read up to a block and their reports were judged.
func (r *rig) read(block uint64) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("block %d is read", block), func() bool {
		s := r.status()
		open, err := r.store.Open("usdc")
		return err == nil && s.Block >= block && !slices.ContainsFunc(open, func(o chain.Redemption) bool {
			return o.Verdict == ""
		})
	})
}

// all returns the stored redemptions.
func (r *rig) all() (all []chain.Redemption) {
	r.t.Helper()
	err := r.store.Each(func(one chain.Redemption) error { all = append(all, one); return nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}
