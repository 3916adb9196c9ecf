package index

import (
	"maps"
	"slices"
)

// Fork returns a Packer for another goroutine. It packs with what p has, and notes what comes for Join; it makes no numbers of its own. p must
// not pack meanwhile.
func (p *Packer) Fork() *Packer {
	return &Packer{d: p.d, numbers: p.numbers, seen: make(map[string]uint8), forked: true}
}

// Join adds what forks have seen since they were made, or joined, and has them pack with what p has then. None of them may pack meanwhile.
func (p *Packer) Join(forks ...*Packer) {
	for _, fork := range forks {
		for _, text := range slices.Sorted(maps.Keys(fork.seen)) {
			if _, shared := p.numbers[text]; !shared && p.hasRoom([]byte(text)) {
				p.count([]byte(text), fork.seen[text])
			}
		}
		clear(fork.seen)
	}
	for _, fork := range forks {
		fork.d = p.d
	}
}
