package bolt_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/attestd/attestd/store/disk/disktest"
)

// platter is a disk with a cache that a power cut empties. It keeps what was synced apart from what was not, of each file and of the names.
type platter struct {
	random  *rand.Rand
	files   map[uint64]*platterFile // by number, which a file may take over from one that is gone
	names   map[string]*platterFile
	pending []nameChange
}

type platterFile struct {
	synced  []byte
	pending []disktest.Op
}

// nameChange is a name that was given to a file, or taken from all where file is nil.
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
		case f == nil: // the folder
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

// rename takes a file's other names: none of ours has two when it is renamed.
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

// afterCut is what a cut leaves: of the names those that were synced, and of the changes since as many as got there, in their order, as file systems
// keep it; of the files, see contentAfterCut.
func (p *platter) afterCut() folder {
	names := maps.Clone(p.names)
	for _, c := range p.pending[:p.random.IntN(len(p.pending)+1)] {
		c.apply(names)
	}
	left := make(folder)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if strings.HasPrefix(n, ".") {
			continue // the other name of a file that is being made
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

// contentAfterCut is what is left of a file: of each write since the last sync all, nothing, or some sectors, one of them half.
func (p *platter) contentAfterCut(f *platterFile) []byte {
	const sector = 512
	image := append([]byte{}, f.synced...)
	torn := p.random.IntN(2) == 0
	share := p.random.IntN(4) // of the sectors that get there: none, some, most, all
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
