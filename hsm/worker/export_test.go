package worker

import "os/exec"

// Started returns the options with a different program as the worker.
func (o Options) Started(command func() *exec.Cmd) Options {
	o.command = command
	return o
}

// Itself is the command that starts this program again.
var Itself = itself
