package worker

import "os/exec"

// Started returns the options with another program in the place of this one.
func (o Options) Started(command func() *exec.Cmd) Options {
	o.command = command
	return o
}

// Itself is what starts this program again.
var Itself = itself
