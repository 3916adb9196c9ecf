// Command transparency is the witness of transparency-dev for our tests: its handler behind a listener, with its state
// in memory. It prints its vkey.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/witness/persistence/inmemory"
	"github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/note"
)

var (
	listen = flag.String("listen", "127.0.0.1:0", "address of the server")
	name   = flag.String("name", "witness.example/transparency", "name of the witness")
	vkey   = flag.String("log", "", "vkey of the log that it knows")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	secret, public, err := note.GenerateKey(rand.Reader, *name)
	if err != nil {
		return err
	}
	signer, err := f_note.NewSignerForCosignatureV1(secret)
	if err != nil {
		return err
	}
	known, err := note.NewVerifier(*vkey)
	if err != nil {
		return err
	}
	w, err := witness.New(ctx, witness.Opts{
		Persistence: inmemory.New(),
		Signers:     []note.Signer{signer},
		VerifierForLog: func(_ context.Context, origin string) (note.Verifier, bool, error) {
			return known, origin == known.Name(), nil
		},
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	cosigner, err := f_note.VKeyToCosignatureV1(public)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n%s\n", l.Addr(), cosigner)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", witness.NewHTTPHandler(w).AddCheckpoint)
	server := &http.Server{Handler: mux, ReadTimeout: time.Minute}
	return server.Serve(l)
}
