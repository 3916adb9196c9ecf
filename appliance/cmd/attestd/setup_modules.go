package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

// chooseModule returns the one library that nobody needs to be asked about: the only one of an HSM, or SoftHSM where
// there is none of an HSM.
func chooseModule(found []hsm.Module) (hsm.Module, error) {
	var ofHSMs, soft []hsm.Module
	for _, m := range found {
		if m.HSM {
			ofHSMs = append(ofHSMs, m)
		}
		if softhsm.IsModule(m.Path) {
			soft = append(soft, m)
		}
	}
	switch {
	case len(ofHSMs) == 1:
		return ofHSMs[0], nil
	case len(ofHSMs) == 0 && len(soft) > 0:
		return soft[0], nil
	case len(found) == 0:
		return hsm.Module{}, errors.New("no PKCS#11 module is on this machine: install the HSM's client, or SoftHSM to try " +
			"(apt install softhsm2, dnf install softhsm), or name one with --module")
	}
	return hsm.Module{}, fmt.Errorf("which PKCS#11 module? Name one with --module: %s", listModules(found))
}

func listModules(found []hsm.Module) string {
	items := make([]string, len(found))
	for i, m := range found {
		items[i] = m.Path + " (" + m.Name + ")"
	}
	return strings.Join(items, ", ")
}
