package packaging

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the paths of the documents about the source.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/decisions/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		paths = append(paths, found...)
	}
	// it is about past versions
	return slices.DeleteFunc(paths, func(path string) bool { return filepath.Base(path) == "CHANGELOG.md" })
}

var (
	fenced = regexp.MustCompile("(?s)```.*?```")
	span   = regexp.MustCompile("`([^`\n]+)`")
	// A path in the source, optionally with a declaration: hsm/pin.go:login, hsm/signer.go:Signer.Sign.
	sourcePath = regexp.MustCompile(
		`^((?:api|appliance|docs|hsm|packaging|store|systemd)/[\w./-]*\w)(?::(\w+(?:\.\w+)?))?$`)
	linkTarget = regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`)
)

// Each file, folder, function, method and type that a document names exists.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	t.Parallel()
	source := readDeclarations(t)
	named := 0
	for _, document := range documents(t) {
		text := fenced.ReplaceAllString(readText(t, document), "")
		for _, code := range span.FindAllStringSubmatch(text, -1) {
			at := sourcePath.FindStringSubmatch(code[1])
			if at == nil {
				continue
			}
			path, name := at[1], at[2]
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s names %s, which is not there%s", document, path, source.elsewhere(name))
				continue
			}
			if name != "" && !source.has(path, name) {
				t.Errorf("%s names %s, which has no %s%s", document, path, name, source.elsewhere(name))
			}
			named++
		}
	}
	if named < 100 {
		t.Errorf("only %d names were found", named)
	}
}

// docs/architecture.md names each folder with Go code.
func TestArchitectureNamesEachPackage(t *testing.T) {
	t.Parallel()
	text := readText(t, "../docs/architecture.md")
	folders := make(map[string]bool)
	for path := range readDeclarations(t) {
		if folder := filepath.Dir(path); !strings.Contains(path, "/testdata/") {
			folders[folder] = true
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if !strings.Contains(text, "`"+folder+"`") {
			t.Errorf("docs/architecture.md does not tell what %s is", folder)
		}
	}
}

// Links between documents work. Links in docs stay in docs, because the packages install no other folder of the source.
func TestDocumentsLinkToFiles(t *testing.T) {
	t.Parallel()
	for _, document := range documents(t) {
		for _, link := range linkTarget.FindAllStringSubmatch(fenced.ReplaceAllString(readText(t, document), ""), -1) {
			to := filepath.Join(filepath.Dir(document), link[1])
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", document, link[1], err)
			}
			if strings.HasPrefix(document, "../docs/") && !strings.HasPrefix(to, "../docs/") {
				t.Errorf("%s links to %s, which is not installed beside it", document, link[1])
			}
		}
	}
}

// Each decision is in the list of decisions.
func TestDecisionsAreListed(t *testing.T) {
	t.Parallel()
	list := readText(t, "../docs/decisions/README.md")
	for _, document := range documents(t) {
		if name := filepath.Base(document); strings.HasPrefix(document, "../docs/decisions/") && name != "README.md" &&
			!strings.Contains(list, "]("+name+")") {
			t.Errorf("%s is not in docs/decisions/README.md", name)
		}
	}
}

// declarations are the names that each Go file declares: functions, types, variables and constants, and methods as
// Type.Method.
type declarations map[string][]string

func (d declarations) has(path, name string) bool { return slices.Contains(d[path], name) }

// elsewhere returns the files that declare a name, as a hint for the error.
func (d declarations) elsewhere(name string) string {
	var places []string
	for path := range d {
		if name != "" && d.has(path, name) {
			places = append(places, path)
		}
	}
	if len(places) == 0 {
		return ""
	}
	slices.Sort(places)
	return fmt.Sprintf(" (%s is in %s)", name, strings.Join(places, ", "))
}

func readDeclarations(t *testing.T) declarations {
	t.Helper()
	found := make(declarations)
	for _, top := range []string{"api", "appliance", "hsm", "packaging", "store", "systemd"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.Name() == "node_modules":
				return filepath.SkipDir
			case !strings.HasSuffix(path, ".go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			found[strings.TrimPrefix(path, "../")] = declared(file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func declared(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names = append(names, receiver(d)+d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}

// receiver returns "Type." for a method, without pointer and type parameters, and "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	at := d.Recv.List[0].Type
	for {
		switch expr := at.(type) {
		case *ast.StarExpr:
			at = expr.X
		case *ast.IndexExpr:
			at = expr.X
		case *ast.IndexListExpr:
			at = expr.X
		case *ast.Ident:
			return expr.Name + "."
		default:
			return ""
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testOf matches a test or a script of the command, as documents name them.
var testOf = regexp.MustCompile(
	"`([\\w/]+_test\\.go):(Test\\w+)`|`(appliance/cmd/attestd/testdata/script/\\w+\\.txtar)`")

// Each row of the threat model names an existing test or script, and .ci/run runs the drills among them.
func TestTheThreatModelNamesTests(t *testing.T) {
	t.Parallel()
	_, text, found := strings.Cut(readText(t, "../docs/security.md"), "\n## Threats\n")
	if !found {
		t.Fatal("docs/security.md has no section Threats")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	rows := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| attack") {
			continue
		}
		rows++
		if !testOf.MatchString(line) {
			t.Errorf("no test shows this: %s", line)
		}
	}
	if rows < 30 {
		t.Errorf("only %d rows were found", rows)
	}
	sample := readText(t, "../.ci/run")
	for _, drill := range regexp.MustCompile(`TestDrill(\w+)`).FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`sample\+?='.*\b` + drill[1] + `\b`).MatchString(sample) {
			t.Errorf(".ci/run does not run the drill %s", drill[0])
		}
	}
}

// The operator of one appliance reaches three members with fewer than 30 commands, including the first installation.
func TestTheWayToThreeMembersIsShort(t *testing.T) {
	t.Parallel()
	commands := 0
	for _, part := range [][2]string{
		{"../docs/operations.md", "Install"}, {"../docs/cluster.md", "The database"},
		{"../docs/cluster.md", "From one appliance to three"},
	} {
		_, text, found := strings.Cut(readText(t, part[0]), "\n## "+part[1]+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
		if part[1] == "Install" { // on Debian; other systems and the first attestation follow
			_, text, _ = strings.Cut(text, "```console\n")
			text, _, _ = strings.Cut(text, "```")
		}
		n := strings.Count("\n"+text, "\n# ")
		if !found || n == 0 {
			t.Errorf("%s has no commands under %q", part[0], part[1])
		}
		commands += n
	}
	if commands >= 30 {
		t.Errorf("the way from nothing to three members has %d commands", commands)
	}
}
