// Package daemontest runs appliances as processes for tests: attestd in a folder, with a token of SoftHSM. Its types and
// functions prepare an appliance, start and kill it, and read what it did.
package daemontest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
)

// Patience bounds every wait. Only a hang reaches it, however slow and busy the machine is.
const Patience = 3 * time.Minute

// FreeAddress returns an address without a listener. It returns each address once. Its port is below the ephemeral
// range, so that no connection and no listener of port 0 takes the port first.
func FreeAddress(t testing.TB) string {
	t.Helper()
	const first, last = 10_000, 32_000 // Linux assigns 32768 and up
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", first+rand.N(last-first))
		if _, given := givenAddresses.LoadOrStore(address, true); given {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			defer l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

var givenAddresses sync.Map // by FreeAddress: their users may not listen yet

// WaitReady waits until a daemon answers on the admin socket.
func WaitReady(socket string) error {
	daemon := client.NewAdmin(socket)
	defer daemon.Close()
	for deadline := time.Now().Add(Patience); ; {
		_, err := daemon.Status(context.Background())
		if err == nil {
			return nil
		}
		if !errors.Is(err, client.ErrNotRunning) || time.Now().After(deadline) {
			return fmt.Errorf("the daemon at %s is not ready: %w", socket, err)
		}
		time.Sleep(10 * time.Millisecond) // between two polls: the socket's creation can only be polled
	}
}

// WaitListening waits until a program accepts connections there.
func WaitListening(tb testing.TB, address string) {
	tb.Helper()
	for deadline := time.Now().Add(Patience); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("nothing listens on %s: %v", address, err)
		}
		time.Sleep(10 * time.Millisecond) // between two polls
	}
}

// Await polls until holds returns true. It fails the test after Patience.
func Await(tb testing.TB, what string, holds func() (ok bool, now string)) {
	tb.Helper()
	for deadline := time.Now().Add(Patience); ; {
		ok, now := holds()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %s; now: %s", what, Patience, now)
		}
		time.Sleep(20 * time.Millisecond) // between two polls: the state can only be polled
	}
}

// RandomRequest returns a request for two random addresses.
func RandomRequest() (r appliance.Request) {
	for i := range r.UnspendableAddress {
		r.UnspendableAddress[i], r.Beneficiary[i] = byte(rand.Uint32()), byte(rand.Uint32())
	}
	return r
}
