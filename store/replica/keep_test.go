package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/storetest"
)

// patience bounds every wait of these tests. Their waits normally end far earlier.
const patience = 30 * time.Second

// filledReplica creates a closed file with a few hundred records, and returns its export.
func filledReplica(t testing.TB, path string) (records []byte) {
	t.Helper()
	r := openReplica(t, path)
	fill(t, r, 300)
	records = export(t, r)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return records
}

func keep(t testing.TB, path string) *Kept {
	t.Helper()
	k := OpenAndRetry(path, KeepOptions{Options: Options{Now: func() time.Time {
		return storetest.ReplicaNow
	}}, Retry: time.Millisecond})
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func transfersOf(t testing.TB, from index.Index) (n uint64, err error) {
	t.Helper()
	err = from.View(t.Context(), func(s index.Snapshot) error {
		status, err := s.Status(t.Context())
		n = status.Rows[index.TransferType.Name]
		return err
	})
	return n, err
}

// overwrite changes a part of a file.
func overwrite(t testing.TB, path string, at int64, with []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(with, at); err != nil {
		t.Fatal(err)
	}
}

func garbage(n int) []byte {
	b, random := make([]byte, n), rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b)
	return b
}

func setSchema(t testing.TB, path, version string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err == nil {
		err = errors.Join(db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketMeta).Put(keyLayout, []byte(version))
		}), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// asNobody runs f as a user who owns the folder but not the file. Root may open any file.
func asNobody(t *testing.T, path string, f func()) {
	t.Helper()
	const nobody = 65534
	if os.Geteuid() != 0 {
		f()
		return
	}
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Dir(path), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(nobody); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setfsuid(0) }()
	f()
}

func TestAReplicaThatCannotBeOpenedIsSetAside(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, path string){
		"half of it":       func(t *testing.T, path string) { truncateTo(t, path, 0.5) },
		"its last page":    func(t *testing.T, path string) { truncateTo(t, path, 0.99) },
		"its first byte":   func(t *testing.T, path string) { check(t, os.Truncate(path, 1)) },
		"nothing of it":    func(t *testing.T, path string) { check(t, os.Truncate(path, 0)) },
		"garbage in front": func(t *testing.T, path string) { overwrite(t, path, 0, garbage(4*pageSize)) },
		"garbage":          func(t *testing.T, path string) { check(t, os.WriteFile(path, garbage(1<<20), 0o600)) },
		"text": func(t *testing.T, path string) {
			check(t, os.WriteFile(path, []byte("transfers\n"), 0o600))
		},
		"an older version":   func(t *testing.T, path string) { setSchema(t, path, "2") },
		"a newer version":    func(t *testing.T, path string) { setSchema(t, path, strconv.Itoa(layoutVersion+1)) },
		"another's database": func(t *testing.T, path string) { check(t, os.Remove(path)); foreign(t, path) },
		"a folder": func(t *testing.T, path string) {
			check(t, os.Remove(path))
			check(t, os.Mkdir(path, 0o700))
		},
		"no permission": func(t *testing.T, path string) { check(t, os.Chmod(path, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "replica.db")
			filledReplica(t, path)
			damage(t, path)
			before, err := os.Lstat(path)
			check(t, err)
			var k *Kept
			open := func() { k = keep(t, path) }
			if name == "no permission" {
				asNobody(t, path, open)
			} else {
				open()
			}
			if n, err := transfersOf(t, k); n != 0 || err != nil {
				t.Fatalf("%d transfers, %v", n, err)
			}
			fillKept(t, k)
			found, err := SetAside(path)
			if err != nil || len(found) != 1 || k.SetAsideCount() != 1 {
				t.Fatalf("set aside: %q, %v; counted %d", found, err, k.SetAsideCount())
			}
			if after, err := os.Lstat(found[0]); err != nil || after.Mode() != before.Mode() ||
				!os.SameFile(after, before) {
				t.Errorf("set aside is %v, %v; it was %v", after, err, before)
			}
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func truncateTo(t testing.TB, path string, part float64) {
	t.Helper()
	check(t, os.Truncate(path, int64(part*float64(len(usedPart(t, path))))))
}

// foreign creates a valid bbolt file that is not a replica.
func foreign(t testing.TB, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	check(t, err)
	check(t, db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("records")); return err }))
	check(t, db.Close())
}

// fillKept writes some records, as a follower would.
func fillKept(t testing.TB, k *Kept) {
	t.Helper()
	err := dataset.Generate(t.Context(), dataset.GenerateOptions{Transfers: 10, Seed: 1, Now: storetest.ReplicaNow},
		func(rows []index.Row) error {
			_, err := k.Write(t.Context(), index.Batch{Rows: rows})
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := transfersOf(t, k); n != 10 || err != nil {
		t.Fatalf("%d transfers of 10, %v", n, err)
	}
}

// The file is damaged under many readers and a writer. Each call returns data that was written or
// CodeReplicaUnavailable, and an empty replica replaces the damaged one.
func TestAReplicaThatIsDamagedWhileItIsOpenIsSetAside(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"emptied":          func(t *testing.T, path string) { check(t, os.Truncate(path, 0)) },
		"cut":              func(t *testing.T, path string) { check(t, os.Truncate(path, 5*pageSize)) },
		"garbage in front": func(t *testing.T, path string) { overwrite(t, path, 0, garbage(2*pageSize)) },
		"garbage behind":   func(t *testing.T, path string) { overwriteBehind(t, path, 2*pageSize) },
		"a byte a page":    everyPage,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "replica.db")
			records := filledReplica(t, path)
			k := keep(t, path)
			var readers sync.WaitGroup
			begun := make(chan struct{})
			for range 8 {
				readers.Go(func() {
					for i := 0; k.SetAsideCount() == 0; i++ {
						got, err := exportOrPanic(t, k)
						switch {
						case err == nil && bytes.Equal(got, records):
						case err == nil && len(got) == 0: // from the new file
						case errors.Is(err, errPanicked): // the row changed after its check; the API answers 500
						case appliance.CodeOf(err) != appliance.CodeReplicaUnavailable:
							t.Errorf("%v, or other records than were written", err)
							return
						}
						if i == 0 {
							begun <- struct{}{}
						}
					}
				})
			}
			for range 8 {
				<-begun
			}
			damage(t, path)
			ended := make(chan struct{})
			go func() { readers.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("a reader waits for ever, or the damage is not noticed")
			}
			waitFor(t, func() bool { return k.Ready() == nil })
			fillKept(t, k)
		})
	}
}

var errPanicked = errors.New("panicked")

func exportOrPanic(t testing.TB, from index.Index) (records []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanicked, cause)
		}
	}()
	var b bytes.Buffer
	_, err = dataset.Export(t.Context(), from, &b, dataset.ExportOptions{})
	return b.Bytes(), err
}

// waitFor polls until a condition holds that cannot be waited for.
func waitFor(t testing.TB, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not so yet")
		}
	}
}

func overwriteBehind(t testing.TB, path string, from int64) {
	t.Helper()
	stat, err := os.Stat(path)
	check(t, err)
	overwrite(t, path, from, garbage(int(stat.Size()-from)))
}

// everyPage changes a byte in each page except the first two, far from its header.
func everyPage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	b := make([]byte, 1)
	for at := int64(2*pageSize + pageSize*3/4); err == nil; at += pageSize {
		if _, err = f.ReadAt(b, at); err == nil {
			_, err = f.WriteAt([]byte{b[0] ^ 0x55}, at)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestTheWriterNoticesDamageToo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	filledReplica(t, path)
	k := keep(t, path)
	overwriteBehind(t, path, 2*pageSize)
	_, err := k.Write(t.Context(), index.Batch{Rows: []index.Row{placeholder(index.Chain{UniversalChainID: "test.1"})}})
	if appliance.CodeOf(err) != appliance.CodeReplicaUnavailable {
		t.Errorf("a write into a damaged file: %v", err)
	}
	waitFor(t, func() bool { return k.SetAsideCount() == 1 && k.Ready() == nil })
	fillKept(t, k)
}

// Each file set aside may be as large as the replica.
func TestOnlyTheNewestThatWereSetAsideAreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	for i := range keptAside + 2 {
		check(t, os.WriteFile(path, garbage(100+i), 0o600))
		if err := keep(t, path).Close(); err != nil {
			t.Fatal(err)
		}
	}
	found, err := SetAside(path)
	if err != nil || len(found) != keptAside {
		t.Fatalf("%d are kept, %v", len(found), err)
	}
	for i, name := range found {
		if stat, err := os.Stat(name); err != nil || stat.Size() != int64(102+i) {
			t.Errorf("%s: %v, %v", name, stat, err)
		}
	}
}

func TestAReplicaThatAnotherProcessHasIsLeftAndTriedAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	other := openReplica(t, path)
	fill(t, other, 10)
	k := OpenAndRetry(path, KeepOptions{Options: Options{LockTimeout: time.Millisecond}, Retry: time.Millisecond})
	defer k.Close()
	if _, err := transfersOf(t, k); appliance.CodeOf(err) != appliance.CodeReplicaUnavailable {
		t.Errorf("a replica that another has: %v", err)
	}
	check(t, other.Close())
	waitFor(t, func() bool { return k.Ready() == nil })
	if n, err := transfersOf(t, k); n != 10 || err != nil || k.SetAsideCount() != 0 {
		t.Errorf("%d transfers of 10, %v, %d set aside", n, err, k.SetAsideCount())
	}
}

func TestWhatHasRunOutIsNoFaultOfTheFile(t *testing.T) {
	t.Parallel()
	for _, err := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.EROFS, errInUse,
		fs.ErrNotExist} {
		if isUseless(&fs.PathError{Op: "open", Err: err}) {
			t.Errorf("%v is taken for damage", err)
		}
	}
}

// A batch that continues from a replaced replica must not be written to its successor.
func TestABatchForAnotherReplicaIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	k := keep(t, path)
	idOf := func() (id string) {
		check(t, k.View(t.Context(), func(s index.Snapshot) error {
			status, err := s.Status(t.Context())
			id = status.ID
			return err
		}))
		return id
	}
	before := idOf()
	batch := index.Batch{Index: before, Positions: map[string]string{"cursor": "7"}}
	if _, err := k.Write(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	check(t, os.Truncate(path, 0))
	if _, err := transfersOf(t, k); err == nil {
		t.Fatal("an emptied file is read")
	}
	waitFor(t, func() bool { return k.Ready() == nil })
	if _, err := k.Write(t.Context(), batch); appliance.CodeOf(err) != appliance.CodeReplicaUnavailable ||
		before == idOf() {
		t.Errorf("%v; the replica is %s, and was %s", err, idOf(), before)
	}
}
