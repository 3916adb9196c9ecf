package audit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/ethereum/go-ethereum/crypto"
	"golang.org/x/mod/sumdb/tlog"
)

// Leaf is a leaf that was checked on its own. Entry has no Index, and is zero if the leaf cannot be decoded or was
// skipped.
type Leaf struct {
	Hash tlog.Hash
	journal.Entry
	Skipped bool // see Options.SkipRecords
	part    string
	fault   error
}

// Decoded reports whether Entry is the entry of the leaf.
func (c Leaf) Decoded() bool { return c.part != partRecord && !c.Skipped }

const partRecord = "record" // of a leaf that cannot be decoded

// LostLeaf stands for an unreadable leaf, so that an audit can continue after it. hash is the leaf hash in the tree,
// and why is reported as the damage.
func LostLeaf(hash tlog.Hash, why error) Leaf {
	return Leaf{Hash: hash, part: partRecord, fault: why}
}

// Check decodes leaves, and verifies each record or event on its own. It uses all processors, because this takes nearly
// all of an audit's time. The result for a nil leaf is zero. It may be called while other leaves are checked or added.
func (a *Audit) Check(leaves [][]byte) []Leaf {
	checked := make([]Leaf, len(leaves))
	workers := min(runtime.GOMAXPROCS(0), len(leaves))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(leaves); i += workers {
				if leaves[i] != nil {
					checked[i] = a.check(leaves[i])
				}
			}
		})
	}
	wg.Wait()
	return checked
}

func (a *Audit) check(leaf []byte) Leaf {
	c := Leaf{Hash: tlog.RecordHash(leaf), part: partRecord}
	if c.Skipped = a.signers.opts.SkipRecords && !journal.IsEvent(leaf); c.Skipped {
		return c
	}
	if c.Entry, c.fault = journal.DecodeEntry(0, leaf); c.fault != nil {
		return c
	}
	if c.Event != nil {
		c.part, c.fault = "event", c.Event.Verify()
		return c
	}
	var signed func(appliance.Digest, appliance.Signature) bool
	if v := a.tables.all()[c.Record.SignerAddress]; v != nil {
		signed = v.Signed
	}
	c.part, c.fault = "signature", c.Record.VerifyBy(signed)
	return c
}

// tables are the Verifiers of the signers with many records. They find the same as recovery, in less time.
// An appliance has few signers. The zero value is ready.
type tables struct {
	of atomic.Pointer[map[appliance.Address]*secp256k1.Verifier]
} // the map is never modified

func (t *tables) all() map[appliance.Address]*secp256k1.Verifier {
	if all := t.of.Load(); all != nil {
		return *all
	}
	return nil
}

const (
	// tableAfter is the number of good records of a signer after which its Verifier is made. Making it takes as long as
	// some hundred recoveries.
	tableAfter = 2000
	mostTables = 8 // of 3 MiB each, and one for the generator
)

// add makes the Verifier of a good attestation's signer.
func (t *tables) add(a appliance.Attestation) {
	all := maps.Clone(t.all())
	if len(all) == mostTables {
		return
	}
	var another *secp256k1.Verifier
	for _, v := range all {
		another = v
	}
	signature := a.Signature.Bytes()
	signature[64] -= 27 // go-ethereum's recovery id
	publicKey, err := crypto.Ecrecover(a.Hash[:], signature[:])
	if err != nil {
		return // not of a good attestation
	}
	v, err := another.Of(publicKey)
	if err != nil {
		return // not of a recovered key
	}
	if all == nil {
		all = make(map[appliance.Address]*secp256k1.Verifier)
	}
	all[a.SignerAddress] = v
	t.of.Store(&all)
}

// Ahead calls read for the blocks from 0 to n-1, as many at a time as there are processors, and add with each result,
// in order. So a store is read while leaves are checked. Ahead returns the first error, when the reads have ended.
func Ahead[T any](n int64, read func(block int64) (T, error), add func(block int64, result T) error) error {
	type outcome struct {
		result T
		err    error
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	ahead := int64(runtime.GOMAXPROCS(0))
	outcomes := make([]chan outcome, ahead)
	begin := func(block int64) {
		if block >= n {
			return
		}
		done := make(chan outcome, 1)
		outcomes[block%ahead] = done
		reading.Go(func() {
			result, err := read(block)
			done <- outcome{result, err}
		})
	}
	for block := range ahead {
		begin(block)
	}
	for block := range n {
		o := <-outcomes[block%ahead]
		begin(block + ahead)
		if o.err != nil {
			return o.err
		}
		if err := add(block, o.result); err != nil {
			return err
		}
	}
	return nil
}

// Limits of a block of an export: it keeps all processors busy, and takes 5 MiB at most.
const (
	exportLeaves = 512
	exportBytes  = 4 << 20
	exportLine   = 1 << 20 // longest leaf
)

// Export adds the leaves of an export, one per line. each, if not nil, is called with each leaf and its index, in their
// order. If ctx ends, Export returns its error after the current block.
func (a *Audit) Export(ctx context.Context, in io.Reader, each func(index int64, c Leaf)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, exportLine)
	for {
		block, size := make([][]byte, 0, exportLeaves), 0
		for len(block) < exportLeaves && size < exportBytes && lines.Scan() {
			block, size = append(block, append([]byte{}, lines.Bytes()...)), size+len(lines.Bytes())
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, c := range a.Check(block) {
			index := a.report.Size
			if a.Add(c); each != nil {
				each(index, c)
			}
		}
		if len(block) == 0 {
			break
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}
