//go:build packages

package packaging

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// manual is a document of commands for operators, such as docs/operations.md.
type manual struct {
	blocks []*block
	prose  []string // commands in the text between the blocks
	typed  string   // all commands typed so far
}

// block is a fenced block of the manual. Its name is its heading, its language and its number among the blocks of both.
type block struct {
	name     string
	language string
	notRun   string // why tests cannot run it, from the fence: "console not run: REASON"
	text     string // without prompts
	ran      bool
}

// placeholders maps text that an operator must replace to the test's replacement. The test changes no other text.
var placeholders = map[string]string{
	"key revoke ID":               `key revoke "$(attestd key list | awk '$2 == "payments-2027" { print $1 }')"`,
	"key bind ID":                 `key bind "$(attestd key list | awk '$2 == "payments-2027" { print $1 }')"`,
	"https://graphql.example.com": "http://127.0.0.1:8090", // the upstream on this machine
}

// elsewhere are commands that the text only mentions, with the reason why they are not run.
var elsewhere = map[string]string{
	"man attestd":                  "there is no man in the Debian of the test; TestDeb finds the page",
	"kill -9":                      "it says what not to do",
	"vtl createCert":               "it wants a Luna",
	"clientconfig deploy":          "it wants a Luna",
	"vtl verify":                   "it wants a Luna",
	"configure-pkcs11 -a ADDRESS":  "it wants a CloudHSM",
	"yubihsm-shell -a get-wrapped": "it wants a YubiHSM",
	"systemctl edit attestd":       "it opens an editor; the drop-in is shown below it",
	"rpm --erase attestd":          "TestRPMLifeCycle does it",
	"promtool test rules":          "TestAlertsFireWhenTheyShould runs it",
	"make test-cluster":            "it is for who changes attestd",
	"make bench-cluster":           "it is for who changes attestd",
	"make test":                    "it is for who changes attestd",
	"attestd status --watch":       "it goes on; TestLiveViewsEndWithAKey types it",
	"attestd top":                  "it goes on; TestLiveViewsEndWithAKey types it",
	"attestd log list --follow":    "it goes on; TestWhatFollowsGoesOnUntilItIsInterrupted types it",
	"attestd cluster status":       "TestCluster types it",
	"attestd setup --join":         "TestCluster types it",

	"attestd verify FILE --signer ADDRESS": "it wants an attestation of a key that is gone; hsm_address.txtar has one",

	"dnf remove attestd": "it wants Red Hat's dnf; TestRPMLifeCycle removes the .rpm",
}

var (
	heading = regexp.MustCompile(`^#+ (.+)$`)
	fence   = regexp.MustCompile("^( *)```(\\w*)(?: not run: (.+))?$")
	command = regexp.MustCompile("`([a-z][a-z0-9-]* [^=`][^`]*)`")
)

// readManual parses the manual. A line of a console block must be a command or the continuation of one, so that a
// reader knows which lines to type.
func readManual(t *testing.T, file string) *manual {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, numbers := &manual{}, map[string]int{}
	var under string
	var open *block
	indent := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		isFence := fence.FindStringSubmatch(line)
		switch {
		case isFence != nil && open == nil:
			indent = isFence[1]
			kind := under + ", " + isFence[2]
			numbers[kind]++
			open = &block{name: fmt.Sprintf("%s %d", kind, numbers[kind]), language: isFence[2], notRun: isFence[3]}
		case isFence != nil:
			m.blocks, open = append(m.blocks, open), nil
		case open != nil:
			open.add(t, strings.TrimPrefix(line, indent))
		default:
			if h := heading.FindStringSubmatch(line); h != nil {
				under = h[1]
			}
			for _, found := range command.FindAllStringSubmatch(line, -1) {
				m.prose = append(m.prose, found[1])
			}
		}
	}
	if open != nil {
		t.Fatalf("%s is not closed", open.name)
	}
	return m
}

func (b *block) add(t *testing.T, line string) {
	t.Helper()
	typed, isCommand := strings.CutPrefix(line, "# ")
	if b.notRun != "" && !isCommand {
		typed, isCommand = strings.CutPrefix(line, "$ ")
	}
	if b.language == "console" && !isCommand && !strings.HasSuffix(b.text, "\\\n") {
		t.Errorf("%s: %q is neither a command nor the rest of one", b.name, line)
	}
	b.text += typed + "\n"
}

// find returns a block to run. It fails for a block that is marked as not run.
func (m *manual) find(t *testing.T, name string) *block {
	t.Helper()
	i := slices.IndexFunc(m.blocks, func(b *block) bool { return b.name == name })
	if i < 0 {
		t.Fatalf("there is no block %q", name)
	}
	if m.blocks[i].notRun != "" {
		t.Fatalf("%s says that it is not run: %s", name, m.blocks[i].notRun)
	}
	m.blocks[i].ran = true
	return m.blocks[i]
}

// leaveOut skips a scenario that is impossible on this machine, and records the reason for its block.
func (m *manual) leaveOut(t *testing.T, name, why string) {
	t.Helper()
	m.find(t, name).notRun = why
	t.Skip(why)
}

// read returns a block's text with replaced placeholders.
func (m *manual) read(t *testing.T, name string) string {
	t.Helper()
	text := m.find(t, name).text
	m.typed += text
	for placeholder, value := range placeholders {
		text = strings.ReplaceAll(text, placeholder, value)
	}
	return text
}

// checkAllRan reports each command that no scenario has run: as an error, or with the reason given for it.
func (m *manual) checkAllRan(t *testing.T) {
	t.Helper()
	ran := 0
	for _, b := range m.blocks {
		switch {
		case b.notRun != "":
			t.Logf("NOT RUN: %s: %s", b.name, b.notRun)
		case b.ran:
			ran++
		case b.language == "console":
			t.Errorf("%s: no scenario runs it:\n%s", b.name, b.text)
		}
	}
	for _, line := range m.unsaid() {
		if why, known := elsewhere[line]; known {
			t.Logf("NOT RUN: %s: %s", line, why)
		} else {
			t.Errorf("the text speaks of `%s`, which no scenario runs", line)
		}
	}
	t.Logf("%d blocks were run as they stand", ran)
}

// unsaid returns the commands in the text that were not typed, without duplicates.
func (m *manual) unsaid() (lines []string) {
	for _, line := range m.prose {
		if !strings.Contains(m.typed, line) && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// operator types the commands of a manual, at one machine at a time.
type operator struct {
	*lifeCycle
	manual *manual
	folder string // working directory of the next block
	pin    string // the PIN as stored in the safe

	small, spare *disk
	another      *machine // replaces the first machine after its loss
}

// types runs a block unchanged with one answer per line of input, and returns its output. Each command must succeed.
func (o *operator) types(t *testing.T, name string, answers ...string) string {
	t.Helper()
	out, err := o.tries(t, name, answers...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// tries is types for a block that may fail.
func (o *operator) tries(t *testing.T, name string, answers ...string) (string, error) {
	t.Helper()
	typed := o.manual.read(t, name)
	o.write(t, "/root/.typed", "set -e -o pipefail\n"+typed)
	o.write(t, "/root/.answers", strings.Join(append(answers, ""), "\n"))
	out, err := o.try(t, "cd "+o.folder+" && exec bash /root/.typed </root/.answers")
	t.Logf("%s\n%s%s", name, typed, out)
	return out, err
}

// configures appends a block of YAML to the configuration.
func (o *operator) configures(t *testing.T, name string) {
	t.Helper()
	o.write(t, "/root/.yaml", o.manual.read(t, name))
	o.run(t, "(echo; cat /root/.yaml) >>/etc/attestd/attestd.yaml")
}

// write writes a file of root's in the machine's tree. It does not reach file systems that the machine has mounted.
func (m *machine) write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, path), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
