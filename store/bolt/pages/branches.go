package pages

import (
	"encoding/binary"
	"fmt"
)

// CheckBranches finds trees with a cycle, in which bbolt would loop forever. It also finds trees that lead to a page
// outside the file, of the wrong kind, or free: a free page has old contents, and bbolt will overwrite it.
// CheckBranches reads all branch pages, about a hundredth of the file, the free list, and one leaf header under each
// lowest branch. That is enough to see that no page is reached twice. It does not check the contents of leaves. The
// error names the bucket and the page.
func (r *Reader) CheckBranches() error {
	buckets, err := r.Buckets()
	if err != nil {
		return err
	}
	seen := make([]bool, r.limit)
	for name, b := range buckets {
		if b.inline != nil {
			continue
		}
		if err := r.checkBranch(b.root, nil, nil, seen); err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}
	free, err := r.FreePages()
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	for _, id := range free {
		if err := r.mark(id, seen); err != nil {
			return fmt.Errorf("list of free pages: %w", err)
		}
	}
	return nil
}

// checkBranch checks the tree at a page. The keys must be at least lo and below hi. It ends, because it follows no page
// twice.
func (r *Reader) checkBranch(id uint64, lo, hi []byte, seen []bool) error {
	if err := r.mark(id, seen); err != nil {
		return err
	}
	if leaf, err := r.isLeaf(id); leaf || err != nil {
		return err
	}
	pg, err := r.load(id)
	if err != nil {
		return err
	}
	if !pg.within(lo, hi) {
		return fmt.Errorf("page %d: the keys contradict its parent page", id)
	}
	lowest, err := r.isLeaf(pg.child(0))
	if err != nil {
		return err
	}
	for i := range pg.count {
		if lowest { // all leaves of a tree have the same depth
			err = r.mark(pg.child(i), seen)
		} else {
			childLo, childHi := pg.bounds(i, lo, hi)
			err = r.checkBranch(pg.child(i), childLo, childHi, seen)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) mark(id uint64, seen []bool) error {
	if id < 2 || id >= r.limit {
		return fmt.Errorf("page %d: outside the file's %d pages", id, r.limit)
	}
	if seen[id] {
		return fmt.Errorf("page %d: is used twice", id)
	}
	seen[id] = true
	return nil
}

func (r *Reader) isLeaf(id uint64) (bool, error) {
	if id < 2 || id >= r.limit {
		return false, fmt.Errorf("page %d: outside the file's %d pages", id, r.limit)
	}
	header := make([]byte, pageHeader)
	if _, err := r.file.ReadAt(header, int64(id)*int64(r.size)); err != nil {
		return false, fmt.Errorf("page %d: %w", id, err)
	}
	return binary.NativeEndian.Uint16(header[8:]) == flagLeaf, nil
}
