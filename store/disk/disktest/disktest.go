// Package disktest provides a disk that fails on request and records the order of its writes: a folder mounted through
// FUSE. The code under test must run in another process, because a page fault on a mapped file waits for the process
// that serves the mount.
package disktest

import (
	"context"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Op is an operation on a file.
type Op struct {
	Kind   Kind
	File   uint64 // inode number, independent of the name; unset for Removed
	Name   string // the new name for Created, Linked and Renamed; the old name for Removed
	Offset int64  // offset of Written; new size of Resized
	Data   []byte // content of Written
}

// Kind is the kind of an operation.
type Kind int

// The kinds.
const (
	Written Kind = iota
	Resized
	Synced // a file, or the folder with the names in it
	Created
	Linked
	Renamed
	Removed
)

// Faults are the failures of the disk. The zero value is a healthy disk.
type Faults struct {
	Write syscall.Errno // result of each write and each change of a file's size, which then have no effect
	// result of each sync; data written to the file since the previous sync is then lost, but stays in the kernel's
	// cache
	Sync      syscall.Errno
	SyncOf    string        // the name of the only file with failing syncs; empty means all
	SyncDelay time.Duration // delay before each sync
	Full      bool          // statfs(2) reports no free space
}

// Disk is a mounted folder. All methods are safe for concurrent use.
type Disk struct {
	Dir     string // mount point
	Backing string // the folder behind the mount: the content of the disk

	mu     sync.Mutex // protects the fields below
	faults Faults
	ops    []Op
	// by file: functions that revert the writes since the last sync, in the order of the writes
	undo map[uint64][]func()
}

// Mount mounts an empty disk until the end of the test. It skips the test if FUSE is unavailable.
func Mount(t testing.TB) *Disk {
	t.Helper()
	d := &Disk{Dir: t.TempDir(), Backing: t.TempDir(), undo: make(map[uint64][]func())}
	root := &fs.LoopbackRoot{Path: d.Backing}
	first := &node{&fs.LoopbackNode{RootData: root}, d}
	root.RootNode = first
	_, err := fs.Mount(d.Dir, first, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMount: true, FsName: "disktest", MaxWrite: 1 << 20,
		ExplicitDataCacheControl: true, // the kernel must not drop its cache after changes behind the mount
	}})
	if err != nil {
		t.Skipf("cannot mount a file system (needs /dev/fuse, and root or fusermount): %v", err)
	}
	t.Cleanup(func() {
		d.Fail(Faults{})
		// The server's own Unmount waits until the last copy of the mount is gone. A container that started in the
		// meantime has a copy in its mount namespace, and would hold the test for as long as it runs.
		if err := syscall.Unmount(d.Dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", d.Dir, err)
		}
	})
	return d
}

// Fail sets the faults from now on.
func (d *Disk) Fail(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Ops returns the operations so far, in order.
func (d *Disk) Ops() []Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ops)
}

// change executes an operation on a file, unless writes fail, and records the operation and its undo function.
func (d *Disk) change(op Op, undo func(), do func() syscall.Errno) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.faults.Write != 0 {
		return d.faults.Write
	}
	if errno := do(); errno != 0 {
		return errno
	}
	d.ops = append(d.ops, op)
	d.undo[op.File] = append(d.undo[op.File], undo)
	return 0
}

func (d *Disk) sync(n *node) syscall.Errno {
	d.mu.Lock()
	delay := d.faults.SyncDelay
	d.mu.Unlock()
	name := path.Base(n.Path(n.Root()))
	time.Sleep(delay) // simulates a slow disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.faults.Sync != 0 && (d.faults.SyncOf == "" || d.faults.SyncOf == name) {
		for _, undo := range slices.Backward(d.undo[n.number()]) {
			undo()
		}
		delete(d.undo, n.number())
		return d.faults.Sync
	}
	d.ops = append(d.ops, Op{Kind: Synced, File: n.number()})
	delete(d.undo, n.number())
	return 0
}

// node is a file or folder of a Disk.
type node struct {
	*fs.LoopbackNode
	disk *Disk
}

// WrapChild implements fs.NodeWrapChilder. It makes the content of the folder part of the disk.
func (n *node) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{child.(*fs.LoopbackNode), n.disk}
}

func (n *node) number() uint64 { return n.StableAttr().Ino }

func (n *node) backing() string { return n.disk.Backing + "/" + n.Path(n.Root()) }

// Open implements fs.NodeOpener. The kernel keeps its cache of the file, as it does for other file systems.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &file{h.(*fs.LoopbackFile), n}, fuse.FOPEN_KEEP_CACHE, 0
}

// Create implements fs.NodeCreater.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32,
	out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.disk.writable(); errno != 0 {
		return nil, nil, 0, errno
	}
	inode, h, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	made := inode.Operations().(*node)
	n.disk.note(Op{Kind: Created, File: made.number(), Name: name})
	return inode, &file{h.(*fs.LoopbackFile), made}, fuse.FOPEN_KEEP_CACHE, 0
}

// note records a change of a name.
func (d *Disk) note(op Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops = append(d.ops, op)
}

// Rename implements fs.NodeRenamer.
func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string,
	flags uint32) syscall.Errno {
	op := Op{Kind: Renamed, Name: newName}
	if child := n.GetChild(name); child != nil {
		op.File = child.StableAttr().Ino
	}
	return n.disk.change(op, func() {}, func() syscall.Errno {
		return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
	})
}

// Unlink implements fs.NodeUnlinker.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.disk.change(Op{Kind: Removed, Name: name}, func() {},
		func() syscall.Errno { return n.LoopbackNode.Unlink(ctx, name) })
}

// OpendirHandle implements fs.NodeOpendirHandler.
func (n *node) OpendirHandle(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	entries, errno := fs.NewLoopbackDirStream(n.backing())
	if errno != 0 {
		return nil, 0, errno
	}
	return &folder{entries, n}, 0, 0
}

// folder is an open folder.
type folder struct {
	entries fs.DirStream
	node    *node
}

// Readdirent implements fs.FileReaddirenter.
func (f *folder) Readdirent(context.Context) (*fuse.DirEntry, syscall.Errno) {
	if !f.entries.HasNext() {
		return nil, 0
	}
	entry, errno := f.entries.Next()
	return &entry, errno
}

// Fsyncdir implements fs.FileFsyncdirer.
func (f *folder) Fsyncdir(context.Context, uint32) syscall.Errno { return f.node.disk.sync(f.node) }

// Releasedir implements fs.FileReleasedirer.
func (f *folder) Releasedir(context.Context, uint32) { f.entries.Close() }

func (d *Disk) writable() syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.faults.Write
}

// Link implements fs.NodeLinker.
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string,
	out *fuse.EntryOut) (inode *fs.Inode, errno syscall.Errno) {
	op := Op{Kind: Linked, File: target.(*node).number(), Name: name}
	errno = n.disk.change(op, func() {}, func() (errno syscall.Errno) {
		inode, errno = n.LoopbackNode.Link(ctx, target, name, out)
		return errno
	})
	return inode, errno
}

// Setattr implements fs.NodeSetattrer.
func (n *node) Setattr(ctx context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	set := func() syscall.Errno { return n.LoopbackNode.Setattr(ctx, nil, in, out) }
	size, resizes := in.GetSize()
	if !resizes {
		return set()
	}
	backing := n.backing()
	stat, err := os.Stat(backing)
	if err != nil {
		return fs.ToErrno(err)
	}
	undo := func() { _ = os.Truncate(backing, stat.Size()) }
	return n.disk.change(Op{Kind: Resized, File: n.number(), Offset: int64(size)}, undo, set)
}

// Statfs implements fs.NodeStatfser.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.faults.Full {
		out.Bavail, out.Bfree = 0, 0
	}
	return errno
}

// file is an open file. It implements only the operations that the disk must record or fail, so that no operation
// bypasses the disk.
type file struct {
	loopback *fs.LoopbackFile
	node     *node
}

// Read implements fs.FileReader.
func (f *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return f.loopback.Read(ctx, buf, off)
}

// Write implements fs.FileWriter.
func (f *file) Write(ctx context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	before := make([]byte, len(data))
	name := f.node.backing()
	backing, err := os.Open(name)
	if err != nil {
		return 0, fs.ToErrno(err)
	}
	had, _ := backing.ReadAt(before, off)
	stat, _ := backing.Stat()
	backing.Close()
	undo := func() {
		if w, err := os.OpenFile(name, os.O_WRONLY, 0); err == nil {
			_, _ = w.WriteAt(before[:had], off)
			_ = w.Truncate(stat.Size())
			w.Close()
		}
	}
	op := Op{Kind: Written, File: f.node.number(), Offset: off, Data: slices.Clone(data)}
	errno = f.node.disk.change(op, undo, func() (errno syscall.Errno) {
		n, errno = f.loopback.Write(ctx, data, off)
		return errno
	})
	return n, errno
}

// Fsync implements fs.FileFsyncer.
func (f *file) Fsync(context.Context, uint32) syscall.Errno { return f.node.disk.sync(f.node) }

// Flush implements fs.FileFlusher.
func (f *file) Flush(context.Context) syscall.Errno { return 0 }

// Release implements fs.FileReleaser.
func (f *file) Release(ctx context.Context) syscall.Errno { return f.loopback.Release(ctx) }
