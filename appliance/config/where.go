package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lines maps names to their lines in a YAML file: server.listen, or chain.contracts[1].rpc for the first entry of a
// list. A missing name has line 0.
type lines map[string]int

// readLines reads the lines of a file. It returns an empty map if the file cannot be read.
func readLines(path string) lines {
	all := make(lines)
	text, err := os.ReadFile(path)
	if err != nil {
		return all
	}
	var document yaml.Node
	if yaml.Unmarshal(text, &document) == nil && len(document.Content) > 0 {
		all.add("", document.Content[0])
	}
	return all
}

func (l lines) add(name string, node *yaml.Node) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			member := strings.TrimPrefix(name+"."+node.Content[i].Value, ".")
			l[member] = node.Content[i].Line
			l.add(member, node.Content[i+1])
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			entry := fmt.Sprintf("%s[%d]", name, i+1)
			l[entry] = item.Line
			l.add(entry, item)
		}
	}
}

// With joins wrong, the faults of loading, with found, the faults that a check of the values found. It adds the
// location to each found fault: the line of the file, or the variable. It omits a found fault if its setting has
// another fault already, because the value may be a secret in the wrong place.
func (s *Source) With(wrong, found error) error {
	told := make(map[string]bool)
	for _, fault := range faults(wrong) {
		told[named(afterVariable(fault.Error()))] = true
	}
	var more []error
	for _, fault := range faults(found) {
		if name := named(fault.Error()); name == "" || !told[name] {
			more = append(more, fault)
		}
	}
	fromEnv, _ := readEnv(s.Environ)
	return errors.Join(wrong,
		located(s.Path(), map[string]map[string]any{"environment": fromEnv}, errors.Join(more...)))
}

const byVariable = "the variable "

// afterVariable removes the prefix that locate adds for a variable.
func afterVariable(fault string) string {
	if rest, is := strings.CutPrefix(fault, byVariable); is {
		_, fault, _ = strings.Cut(rest, ": ")
	}
	return fault
}

func located(path string, layers map[string]map[string]any, err error) error {
	if err == nil {
		return nil
	}
	path = cmp.Or(path, DefaultFile)
	lines := readLines(path)
	var all []error
	for _, fault := range faults(err) {
		all = append(all, locate(path, lines, layers, fault))
	}
	return errors.Join(all...)
}

// faults splits joined errors.
func faults(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, is := err.(interface{ Unwrap() []error })
	if !is {
		return []error{err}
	}
	var texts []string
	for _, one := range joined.Unwrap() {
		all = append(all, faults(one)...)
		texts = append(texts, one.Error())
	}
	if strings.Join(texts, "\n") != err.Error() { // an error of its own that wraps several
		return []error{err}
	}
	return all
}

// inEntry matches the position of a fault in a list, after the list's name.
var inEntry = regexp.MustCompile(`^: entry (\d+)(?:: (\w+)\b)?`)

func locate(path string, lines lines, layers map[string]map[string]any, fault error) error {
	text := fault.Error()
	name := named(text)
	if _, chosen := layers["flags"][name]; name == "" || chosen {
		return fault
	}
	if _, set := layers["environment"][name]; set {
		return fmt.Errorf("%s%s: %w", byVariable, EnvName(name), fault)
	}
	line := lines[name]
	if in := inEntry.FindStringSubmatch(text[len(name):]); in != nil {
		entry := fmt.Sprintf("%s[%s]", name, in[1])
		line = cmp.Or(lines[entry+"."+in[2]], lines[entry], line)
	}
	if line == 0 {
		return fault
	}
	return fmt.Errorf("%w (%s, line %d)", fault, path, line)
}

// named returns the longest name of a setting or a section with which a text begins.
func named(text string) (name string) {
	word, _, _ := strings.Cut(text, " ")
	word = strings.TrimSuffix(word, ":")
	for ; word != ""; word = word[:max(0, strings.LastIndex(word, "."))] {
		if slices.Contains(settingNames(), word) || isSection(word) {
			return word
		}
	}
	return ""
}

// plainYAML rewrites a YAML error for people who write such files.
func plainYAML(err error) error {
	text, is := strings.CutPrefix(err.Error(), "yaml: ")
	if !is {
		return err
	}
	text = strings.TrimSpace(strings.TrimPrefix(text, "unmarshal errors:"))
	if intoGo.MatchString(text) {
		text = intoGo.ReplaceAllString(text, "is not a list of names with their values")
	} else if !strings.Contains(text, "already defined") {
		text += ": indent with spaces, and quote values that contain a colon"
	}
	return errors.New(strings.ReplaceAll(text, "\n  ", "; "))
}

// intoGo matches the parser's message about a document that is not a mapping.
var intoGo = regexp.MustCompile(`cannot unmarshal .* into map\[.*`)
