package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// fiberUtils imports package testing. No other dependency may.
const fiberUtils = "github.com/gofiber/fiber/v2/utils"

func TestNoTestPackageIsInTheBinary(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports", ".")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := json.NewDecoder(strings.NewReader(string(out)))
	seen := false
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ours := strings.HasPrefix(p.ImportPath, "github.com/attestd/attestd/")
		seen = seen || ours
		if ours && strings.HasSuffix(p.ImportPath, "test") && path.Base(p.ImportPath) != "attest" {
			t.Errorf("%s is in the binary", p.ImportPath)
		}
		if slices.Contains(p.Imports, "testing") && p.ImportPath != fiberUtils {
			t.Errorf("%s imports testing", p.ImportPath)
		}
	}
	if !seen {
		t.Errorf("no package of ours is listed:\n%s", out)
	}
}
