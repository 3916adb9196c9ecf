package postgres_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// The environment variables of a child: the database, the secret log key, and the number of the batch in which to stop,
// if any.
const (
	envURL  = "ATTESTD_TEST_POSTGRES_URL"
	envKey  = "ATTESTD_TEST_POSTGRES_KEY"
	envStop = "ATTESTD_TEST_POSTGRES_STOP"
)

// inside is the line that a child prints while it holds the head's lock.
const inside = "inside"

// TestDrillProcesses has four processes append to one journal. One process is stopped (SIGSTOP) inside its transaction. The
// others continue while it is stopped, since timeouts end its transaction. After SIGCONT, that process continues, too.
// Finally, all processes are killed (SIGKILL).
func TestDrillProcesses(t *testing.T) {
	if os.Getenv(envURL) != "" {
		appendUntilTold(t)
		return
	}
	t.Parallel()
	key, secret, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	url, _ := newDatabase(t)
	store := open(t, url, options(key))
	check(t, store.Journal().Ready(t.Context()))
	end := storetest.WatchCheckpoints(t, key.Verifier, member(store))
	var children []*child
	for i := range 4 {
		env := []string{envURL + "=" + url, envKey + "=" + secret}
		if i == 0 {
			env = append(env, envStop+"=10")
		}
		children = append(children, startChild(t, env))
	}
	stopped, others := children[0], children[1:]
	<-stopped.inside
	check(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
	begin := time.Now()
	for i, c := range others {
		before := c.count.Load()
		await(t, fmt.Sprintf("process %d appends", i+1), func() bool { return c.count.Load() > before+10 })
	}
	t.Logf("the others were held up for %s", time.Since(begin).Round(time.Millisecond))
	before := stopped.count.Load()
	_, err = io.WriteString(stopped.stdin, "\n")
	check(t, err)
	check(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	await(t, "the process that was stopped appends", func() bool { return stopped.count.Load() > before+10 })
	var kept answered
	for _, c := range children {
		check(t, c.cmd.Process.Kill())
		c.wait(t, store, &kept)
	}
	end()
	kept.wantKept(t, store.Journal(), key)
}

// Only a part of an appliance's COMMIT arrives. In this state, no timeout of the database applies.
func TestHalfACommitHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	proxy, cutURL, direct, _ := through(t)
	hung, other := open(t, cutURL, options(key)), open(t, direct, options(key))
	check(t, hung.Journal().Ready(t.Context()))
	check(t, other.Journal().Ready(t.Context()))
	before := proxy.Commits()
	proxy.Fail(postgrestest.Faults{CommitDelay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begin := time.Now() // before the lock is taken, since the database's clock runs while this process is paused
	var wg sync.WaitGroup
	wg.Go(func() { _, _, _ = hung.Journal().Append(ctx, storetest.Record(t, "key")) })
	await(t, "the lock is held", func() bool { return proxy.Commits() > before })
	await(t, "another appends", func() bool {
		_, _, err := other.Journal().Append(t.Context(), storetest.Record(t, "key"))
		return err == nil
	})
	if held := time.Since(begin); held < time.Second {
		t.Errorf("the other was held up for %s only", held)
	}
	cancel()
	wg.Wait()
	proxy.Fail(postgrestest.Faults{})
	proxy.Cut()
	await(t, "the one that hung appends", func() bool {
		_, _, err := hung.Journal().Append(t.Context(), storetest.Record(t, "key"))
		return err == nil
	})
	head, err := other.Head(t.Context())
	check(t, err)
	wantClean(t, other.Journal(), int(head.Size))
}

// child is a process that appends, with the ids that it has printed for answered appends.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	inside chan struct{}
	count  atomic.Int64
	ids    []uuid.UUID // complete when ended is closed
	ended  chan struct{}
}

func startChild(t *testing.T, env []string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^TestDrillProcesses$"), inside: make(chan struct{}),
		ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	check(t, err)
	c.stdin, err = c.cmd.StdinPipe()
	check(t, err)
	check(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	go c.read(out)
	return c
}

func (c *child) read(out io.Reader) {
	defer close(c.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == inside {
			close(c.inside)
			continue
		}
		id, err := uuid.Parse(lines.Text())
		if err != nil {
			return // the kill cut the line off
		}
		c.ids = append(c.ids, id)
		c.count.Add(1)
	}
}

// wait waits for the end of a killed child, and adds the ids that it has printed.
func (c *child) wait(t *testing.T, store *postgres.Store, kept *answered) {
	t.Helper()
	<-c.ended
	_ = c.cmd.Wait()
	for _, id := range c.ids {
		e, err := store.Journal().ByID(t.Context(), id)
		if err != nil {
			t.Errorf("%s was answered: %v", id, err)
			continue
		}
		kept.add(e)
	}
}

// appendUntilTold runs in the child.
func appendUntilTold(t *testing.T) {
	key, err := journal.ParseLogKey(os.Getenv(envKey))
	check(t, err)
	o := options(key)
	var mu sync.Mutex // protects standard output
	stop, batches := 0, 0
	_, _ = fmt.Sscan(os.Getenv(envStop), &stop)
	o.Accept = func(tlog.Tree) error {
		if batches++; batches == stop {
			mu.Lock()
			fmt.Println(inside)
			mu.Unlock()
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // while the lock is held
		}
		return nil
	}
	store, err := postgres.Open(os.Getenv(envURL), o)
	check(t, err)
	record := storetest.Record(t, "key")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				r := record
				r.ID = uuid.Must(uuid.NewV7())
				if err := appendRecordOrEvent(store.Journal(), r, i%5 == 4); err != nil {
					continue // blocked for longer than a batch is retried
				}
				mu.Lock()
				_, err := fmt.Println(r.ID)
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
