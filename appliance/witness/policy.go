package witness

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/journal"
)

// MaxPolicy is the maximum size of a policy file in bytes. A policy with 32 logs, witnesses and groups has about 10
// KiB.
const MaxPolicy = 64 << 10

// Policy defines which logs are accepted and which cosignatures their checkpoints need (C2SP tlog-policy).
type Policy struct {
	Logs      []Log
	Witnesses []Witness // in the order of the file

	quorum *component // nil means quorum none
}

// Log is an accepted log.
type Log struct {
	note.Verifier
	URL string // may be empty
}

// Witness is a witness of the policy.
type Witness struct {
	Name string // in the policy
	Key  *Cosigner
	URL  string // submission prefix; may be empty
}

// component is a witness, or a group of which need members must have cosigned.
type component struct {
	name    string
	need    int
	members []*component // nil for a witness
	isIn    string       // name of its group
}

// cosigned reports whether cosignatures of the witnesses in has satisfy the component.
func (c *component) cosigned(has map[string]bool) bool {
	if c.members == nil {
		return has[c.name]
	}
	n := 0
	for _, m := range c.members {
		if m.cosigned(has) {
			n++
		}
	}
	return n >= c.need
}

// String describes the required cosignatures.
func (c *component) String() string {
	if c.members == nil {
		return c.name
	}
	names := make([]string, len(c.members))
	for i, m := range c.members {
		names[i] = m.String()
	}
	return fmt.Sprintf("%d of (%s)", c.need, strings.Join(names, ", "))
}

// Satisfied reports whether the witnesses of these names are a quorum.
func (p *Policy) Satisfied(names ...string) bool {
	has := make(map[string]bool)
	for _, n := range names {
		has[n] = true
	}
	return p.quorum == nil || p.quorum.cosigned(has)
}

// Quorum describes the quorum, for example "2 of (w1, w2, w3)" or "none".
func (p *Policy) Quorum() string {
	if p.quorum == nil {
		return nobody
	}
	return p.quorum.String()
}

// HasLog reports whether the policy accepts a log key.
func (p *Policy) HasLog(key note.Verifier) bool {
	return slices.ContainsFunc(p.Logs, func(l Log) bool {
		return l.Name() == key.Name() && l.KeyHash() == key.KeyHash()
	})
}

// Askable returns an error if a witness's URL is unusable, or if the witnesses with a URL are no quorum.
func (p *Policy) Askable() error {
	var names []string
	for _, w := range p.Witnesses {
		if w.URL == "" {
			continue
		}
		if err := CheckURL(w.URL); err != nil {
			return fmt.Errorf("URL of witness %s: %w", w.Name, err)
		}
		names = append(names, w.Name)
	}
	if !p.Satisfied(names...) {
		return fmt.Errorf("the quorum is %s, but only these witnesses have a URL: %s", p.Quorum(),
			strings.Join(names, ", "))
	}
	return nil
}

// nobody is the word for an empty quorum in a policy.
const nobody = "none"

// parser reads a policy.
type parser struct {
	Policy
	names    map[string]*component
	keys     map[string]bool // by kind of line and bytes
	isClosed bool            // the quorum line has been read
}

// ParsePolicy reads a policy file. Its errors name the line.
func ParsePolicy(text []byte) (*Policy, error) {
	if len(text) > MaxPolicy {
		return nil, fmt.Errorf("the policy has more than %d bytes", MaxPolicy)
	}
	p := &parser{names: make(map[string]*component), keys: make(map[string]bool)}
	n := 0
	for each := range strings.Lines(string(text)) {
		n++
		if err := p.line(strings.TrimSuffix(each, "\n")); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if !p.isClosed {
		return nil, errors.New("a quorum line is missing, such as: quorum none")
	}
	return &p.Policy, nil
}

func (p *parser) line(text string) error {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("control character 0x%02x: only tabs and newlines are allowed", c)
		}
	}
	items := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(items) == 0 || strings.HasPrefix(items[0], "#") {
		return nil
	}
	switch rest := items[1:]; items[0] {
	case "log":
		return p.log(rest)
	case "witness":
		return p.witness(rest)
	case "group":
		return p.group(rest)
	case "quorum":
		return p.setQuorum(rest)
	default:
		return fmt.Errorf("%q is not log, witness, group or quorum", items[0])
	}
}

func (p *parser) log(items []string) error {
	if len(items) < 1 || len(items) > 2 {
		return errors.New("must be: log VKEY [URL]")
	}
	verifier, err := journal.ParseVerifier(items[0])
	if err != nil {
		return fmt.Errorf("key of a log: %w", err)
	}
	p.Logs = append(p.Logs, Log{verifier, strings.Join(items[1:], "")})
	return p.claim("log", items[0])
}

func (p *parser) witness(items []string) error {
	if len(items) < 2 || len(items) > 3 {
		return errors.New("must be: witness NAME VKEY [URL]")
	}
	name := items[0]
	key, err := ParseCosigner(items[1])
	if err != nil {
		return fmt.Errorf("key of witness %s: %w", name, err)
	}
	p.Witnesses = append(p.Witnesses, Witness{name, key, strings.Join(items[2:], "")})
	return errors.Join(p.define(&component{name: name}), p.claim("witness", items[1]))
}

// claim refuses a key that an earlier line of the same kind has, because it would count twice. The name does not
// matter.
func (p *parser) claim(kind, vkey string) error {
	const afterHash = 2
	key, err := base64.StdEncoding.DecodeString(strings.SplitN(vkey, "+", afterHash+1)[afterHash])
	if err != nil {
		return err
	}
	claimed := kind + string(key[1:])
	if p.keys[claimed] {
		return fmt.Errorf("another %s has the same public key", kind)
	}
	p.keys[claimed] = true
	return nil
}

func (p *parser) define(c *component) error {
	switch {
	case c.name == nobody:
		return fmt.Errorf("the name %q is reserved for the empty quorum", c.name)
	case p.names[c.name] != nil:
		return fmt.Errorf("%s is defined twice", c.name)
	}
	p.names[c.name] = c
	return nil
}

func (p *parser) group(items []string) error {
	if len(items) < 3 {
		return errors.New("must be: group NAME all|any|NUMBER MEMBER…")
	}
	c := &component{name: items[0]}
	for _, name := range items[2:] {
		m := p.names[name]
		switch {
		case m == nil:
			return fmt.Errorf("member %s of group %s must be defined first", name, c.name)
		case m.isIn != "":
			return fmt.Errorf("%s is a member twice: of %s and of %s", name, m.isIn, c.name)
		}
		m.isIn = c.name
		c.members = append(c.members, m)
	}
	switch items[1] {
	case "any":
		c.need = 1
	case "all":
		c.need = len(c.members)
	default:
		need, err := strconv.Atoi(items[1])
		if err != nil || strconv.Itoa(need) != items[1] || need < 1 || need > len(c.members) {
			return fmt.Errorf("group %s of %d must need all, any or a number from 1 to %d of them, not %q", c.name,
				len(c.members), len(c.members), items[1])
		}
		c.need = need
	}
	return p.define(c)
}

func (p *parser) setQuorum(items []string) error {
	if len(items) != 1 {
		return errors.New("must be: quorum NAME|none")
	}
	if p.isClosed {
		return errors.New("only one quorum line is allowed")
	}
	p.isClosed = true
	if items[0] == nobody {
		return nil
	}
	if p.quorum = p.names[items[0]]; p.quorum == nil {
		return fmt.Errorf("%s must be defined first", items[0])
	}
	return nil
}
