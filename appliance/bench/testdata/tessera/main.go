// Command tessera is the peer that `make bench` compares with attestd. It attests with the same digest and the same
// request bodies, from well-kept parts: fasthttp serves the requests, libsecp256k1 signs in this process, and Tessera's
// POSIX driver is the log.
//
// It promises less than attestd: it has no authentication and no HSM, checks no signature, and cannot look up a record
// by id. It answers when a signed checkpoint covers the entry. With -sequenced, it answers as soon as the entry has an
// index.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/crypto/secp256k1"
	"github.com/google/uuid"
	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"github.com/valyala/fasthttp"
	"golang.org/x/mod/sumdb/note"
)

var (
	listen    = flag.String("listen", "127.0.0.1:0", "address of the server")
	dir       = flag.String("dir", "", "folder of the log")
	sequenced = flag.Bool("sequenced", false, "answer before a checkpoint is signed")
	batchSize = flag.Uint("batch-size", 256, "most entries of a batch")
	batchAge  = flag.Duration("batch-age", 5*time.Millisecond, "longest wait of an entry for others")
)

// peer attests.
type peer struct {
	log    *tessera.Appender
	await  *tessera.PublicationAwaiter // nil: answer once the entry has an index
	key    []byte
	signer string // its address, EIP-55
}

func main() {
	flag.Parse()
	ctx := context.Background()
	p, err := newPeer(ctx)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(fasthttp.ListenAndServe(*listen, p.serve))
}

func newPeer(ctx context.Context) (*peer, error) {
	driver, err := posix.New(ctx, posix.Config{Path: *dir})
	if err != nil {
		return nil, err
	}
	private, _, err := note.GenerateKey(rand.Reader, "bench.example/peer")
	if err != nil {
		return nil, err
	}
	checkpoints, err := note.NewSigner(private)
	if err != nil {
		return nil, err
	}
	// The driver allows no shorter interval between checkpoints.
	options := tessera.NewAppendOptions().WithCheckpointSigner(checkpoints).WithCheckpointInterval(
		100*time.Millisecond).WithBatching(*batchSize, *batchAge)
	appender, _, reader, err := tessera.NewAppender(ctx, driver, options)
	if err != nil {
		return nil, err
	}
	key, err := crypto.GenerateKey()
	if err != nil {
		return nil, err
	}
	p := &peer{log: appender, key: crypto.FromECDSA(key), signer: crypto.PubkeyToAddress(key.PublicKey).Hex()}
	if !*sequenced {
		p.await = tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 5*time.Millisecond)
	}
	return p, nil
}

func (p *peer) serve(c *fasthttp.RequestCtx) {
	answer, err := p.attest(c.PostBody())
	if err != nil {
		c.Error(err.Error(), fasthttp.StatusServiceUnavailable)
		return
	}
	c.SetContentType("application/json")
	c.SetBody(answer)
}

type request struct {
	UnspendableAddress common.Address `json:"unspendableAddress"`
	Beneficiary        common.Address `json:"beneficiary"`
}

func (p *peer) attest(body []byte) ([]byte, error) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	digest := crypto.Keccak256(r.UnspendableAddress[:], r.Beneficiary[:])
	digest[0] = 0                                   // below the order of BN254's scalar field
	signature, err := secp256k1.Sign(digest, p.key) // r, s and v; the function that crypto.Sign calls
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	answer := fmt.Appendf(nil,
		`{"id":"%s","hash":"0x%x","signature":{"r":"0x%x","s":"0x%x","v":%d},"signerAddress":"%s"}`,
		id, digest, signature[:32], signature[32:64], 27+signature[64], p.signer)
	return answer, p.record(answer)
}

// record returns when the log has the entry, to the extent that -sequenced selects.
func (p *peer) record(entry []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	future := p.log.Add(ctx, tessera.NewEntry(entry))
	if p.await == nil {
		_, err := future()
		return err
	}
	_, _, err := p.await.Await(ctx, future)
	return err
}
