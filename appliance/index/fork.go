package index

import (
	"maps"
	"slices"
)

// Fork returns a Packer for another goroutine. It packs with the dictionary of p and counts new texts for Join, but
// assigns no numbers. p must not pack until Join.
func (p *Packer) Fork() *Packer {
	return &Packer{d: p.d, numbers: p.numbers, seen: make(map[string]uint8), forked: true}
}

// Join adds the texts that forks have counted since Fork or the last Join, and gives them the dictionary of p. No fork
// may pack during Join.
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
