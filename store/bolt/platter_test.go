package bolt_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/attestd/attestd/store/disk/disktest"
)

// platter is a disk with a volatile cache. For each file and for the names, it separates the synced state from the
// pending changes.
type platter struct {
	random  *rand.Rand
	files   map[uint64]*platterFile // by inode number, which the system may reuse after a removal
	names   map[string]*platterFile
	pending []nameChange
}

type platterFile struct {
	synced  []byte
	pending []disktest.Op
}

// nameChange assigns a name to a file, or removes the name if file is nil.
type nameChange struct {
	name string
	file *platterFile
}

func newPlatter(random *rand.Rand) *platter {
	return &platter{random: random, files: make(map[uint64]*platterFile), names: make(map[string]*platterFile)}
}

func (p *platter) do(op disktest.Op, honest bool) {
	f := p.files[op.File]
	switch op.Kind {
	case disktest.Created:
		f = new(platterFile)
		p.files[op.File] = f
		p.pending = append(p.pending, nameChange{op.Name, f})
	case disktest.Linked:
		p.pending = append(p.pending, nameChange{op.Name, f})
	case disktest.Renamed:
		p.rename(op.Name, f)
	case disktest.Removed:
		p.pending = append(p.pending, nameChange{op.Name, nil})
	case disktest.Written, disktest.Resized:
		f.pending = append(f.pending, op)
	case disktest.Synced:
		switch {
		case !honest:
		case f == nil: // a sync of the folder
			for _, c := range p.pending {
				c.apply(p.names)
			}
			p.pending = nil
		default:
			for _, op := range f.pending {
				f.synced = apply(f.synced, op.Kind, op.Offset, op.Data)
			}
			f.pending = nil
		}
	}
}

// rename also removes the file's other names. Each file that these tests rename has only one.
func (p *platter) rename(name string, f *platterFile) {
	names := maps.Clone(p.names)
	for _, c := range p.pending {
		c.apply(names)
	}
	p.pending = append(p.pending, nameChange{name, f})
	for n, of := range names {
		if of == f && n != name {
			p.pending = append(p.pending, nameChange{n, nil})
		}
	}
}

func (c nameChange) apply(names map[string]*platterFile) {
	if c.file == nil {
		delete(names, c.name)
		return
	}
	names[c.name] = c.file
}

// afterCut returns a possible state after a power cut. A random prefix of the pending name changes is applied, because
// file systems keep their order. See contentAfterCut for the files.
func (p *platter) afterCut() folder {
	names := maps.Clone(p.names)
	for _, c := range p.pending[:p.random.IntN(len(p.pending)+1)] {
		c.apply(names)
	}
	left := make(folder)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if strings.HasPrefix(n, ".") {
			continue // the temporary name of a file under creation
		}
		left[n] = p.contentAfterCut(names[n])
	}
	return left
}

func apply(image []byte, kind disktest.Kind, at int64, data []byte) []byte {
	end := at + int64(len(data))
	if missing := end - int64(len(image)); missing > 0 {
		image = append(image, make([]byte, missing)...)
	}
	if kind == disktest.Resized {
		return image[:at]
	}
	copy(image[at:end], data)
	return image
}

// contentAfterCut returns the content of a file after a power cut. Of each write since the last sync, all, none or some
// sectors are applied; one sector may be torn.
func (p *platter) contentAfterCut(f *platterFile) []byte {
	const sector = 512
	image := append([]byte{}, f.synced...)
	torn := p.random.IntN(2) == 0
	share := p.random.IntN(4) // share of the sectors that are applied: none, some, most, all
	for _, op := range f.pending {
		if op.Kind == disktest.Resized {
			if share > 0 {
				image = apply(image, op.Kind, op.Offset, nil)
			}
			continue
		}
		for at := 0; at < len(op.Data); at += sector {
			part := op.Data[at:min(at+sector, len(op.Data))]
			if p.random.IntN(3) >= share {
				if !torn {
					continue
				}
				torn = false
				part = part[:p.random.IntN(len(part))]
			}
			image = apply(image, op.Kind, op.Offset+int64(at), part)
		}
	}
	return image
}
