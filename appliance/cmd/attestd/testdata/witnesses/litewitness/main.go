// Command agent prepares the data of litewitness, a tool of this module: a database with a log, and an ssh-agent with
// its key, which this command serves. It prints the key's fingerprint and the witness's vkey.
package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"log"
	"net"

	"filippo.io/torchwood"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/mod/sumdb/note"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

var (
	database = flag.String("db", "", "file of the database")
	socket   = flag.String("socket", "", "socket of the agent")
	name     = flag.String("name", "witness.example/litewitness", "name of the witness")
	vkey     = flag.String("log", "", "vkey of the log that it knows")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if err := know(*database, *vkey); err != nil {
		return err
	}
	public, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	cosigner, err := torchwood.NewCosignatureSigner(*name, secret)
	if err != nil {
		return err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: secret}); err != nil {
		return err
	}
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n", ssh.FingerprintSHA256(key), cosigner.Verifier())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go agent.ServeAgent(ring, c)
	}
}

// know does what `witnessctl add-log` and `add-key` do.
func know(path, vkey string) error {
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return err
	}
	db, err := sqlite.OpenConn(path, 0)
	if err != nil {
		return err
	}
	defer db.Close()
	err = sqlitex.ExecuteScript(db, `
		CREATE TABLE log (origin TEXT PRIMARY KEY, tree_size INTEGER NOT NULL, tree_hash TEXT NOT NULL);
		CREATE TABLE key (origin TEXT NOT NULL, key TEXT NOT NULL, FOREIGN KEY(origin) REFERENCES log(origin));`, nil)
	if err != nil {
		return err
	}
	none := sha256.Sum256(nil)
	if err := sqlitex.Execute(db, "INSERT INTO log (origin, tree_size, tree_hash) VALUES (?, 0, ?)",
		&sqlitex.ExecOptions{
			Args: []any{verifier.Name(), base64.StdEncoding.EncodeToString(none[:])},
		}); err != nil {
		return err
	}
	return sqlitex.Execute(db, "INSERT INTO key (origin, key) VALUES (?, ?)",
		&sqlitex.ExecOptions{Args: []any{verifier.Name(), vkey}})
}
