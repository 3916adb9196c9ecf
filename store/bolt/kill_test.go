package bolt_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
)

// The environment variables of a child process: the file that it appends to, and the secret log key.
const (
	envKillFile = "ATTESTD_TEST_KILL_FILE"
	envKillKey  = "ATTESTD_TEST_KILL_KEY"
)

// TestKill repeatedly kills a process with SIGKILL during appends. Each record that was acknowledged is in the journal,
// and the journal is sound and continues the earlier one.
func TestKill(t *testing.T) {
	if os.Getenv(envKillFile) != "" {
		appendUntilKilled(t)
		return
	}
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	path := newPath(t)
	_, secret, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	key, err := journal.ParseLogKey(secret)
	check(t, err)
	var earlier []byte
	total := 0
	for round := range rounds {
		ids := killAfter(t, path, secret, 1+13*round)
		s := mustOpen(t, path, options(key))
		for _, id := range ids {
			if _, err := s.Journal().ByID(t.Context(), id); err != nil {
				t.Errorf("round %d: %s was acknowledged: %v", round, id, err)
			}
		}
		total += len(ids)
		if round%5 == 4 || round == rounds-1 {
			wantClean(t, s, earlier)
			earlier, err = s.Journal().Checkpoint(t.Context())
			check(t, err)
		}
		check(t, s.Close())
	}
	t.Logf("%d rounds, %d acknowledged records", rounds, total)
}

// killAfter runs a child until it has acknowledged n records, kills it, and returns the ids of all acknowledged
// records.
func killAfter(t *testing.T, path, secret string, records int) (ids []uuid.UUID) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestKill$")
	child.Env = append(os.Environ(), envKillFile+"="+path, envKillKey+"="+secret)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	check(t, err)
	check(t, child.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() { // to the end: lines printed before the kill count
		id, err := uuid.Parse(lines.Text())
		if err != nil {
			break // the kill cut the line off
		}
		if ids = append(ids, id); len(ids) == records {
			check(t, child.Process.Kill())
		}
	}
	child.Wait()
	if len(ids) < records {
		t.Fatalf("the child ended after %d records", len(ids))
	}
	return ids
}

func appendUntilKilled(t *testing.T) {
	key, err := journal.ParseLogKey(os.Getenv(envKillKey))
	check(t, err)
	s, err := bolt.Open(os.Getenv(envKillFile), options(key))
	check(t, err)
	record := storetest.Record(t, "key")
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 16 {
		wg.Go(func() {
			for i := 0; ; i++ {
				r := record
				r.ID = uuid.Must(uuid.NewV7())
				if i%2 == 0 {
					r.IdempotencyKey = r.ID.String()
				}
				err := appendRecordOrEvent(s.Journal(), r, i%5 == 4)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				_, err = fmt.Println(r.ID)
				mu.Unlock()
				if err != nil {
					return // the parent has ended
				}
			}
		})
	}
	wg.Wait()
}

// appendRecordOrEvent appends the record, or an event with the record's id.
func appendRecordOrEvent(journal audit.Journal, r appliance.Record, event bool) (err error) {
	if event {
		e := storetest.Event()
		e.ID = r.ID
		_, err = journal.AppendEvent(context.Background(), e)
		return err
	}
	_, _, err = journal.Append(context.Background(), r)
	return err
}
