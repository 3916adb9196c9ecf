// Command generate writes docs/configuration.md: go generate ./appliance/config.
package main

import (
	"fmt"
	"os"

	"github.com/attestd/attestd/appliance/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], config.Markdown(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
